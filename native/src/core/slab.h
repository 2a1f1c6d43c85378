/* Objects behind C handles. Their memory is never given back, only reused, so whether a pointer from outside is a live
 * object of this kind can be asked of any pointer at all: destroyed, of another kind, or garbage. */
#pragma once
#include <atomic>
#include <cstdint>
#include <new>
#include <utility>

#include "core/fork_mutex.h"

namespace infini {

template <class T>
class Slab {
public:
    /** Throws std::bad_alloc, or what T's constructor throws. */
    template <class... Args>
    T *create(Args &&...args) {
        Cell *cell = take();
        try {
            T *object = new (cell->storage) T(std::forward<Args>(args)...);
            cell->live.store(true, std::memory_order_release);
            return object;
        } catch (...) {
            give(cell);
            throw;
        }
    }

    /** The object, or nullptr when `pointer` is not a live object of this slab. */
    T *find(const void *pointer) const {
        const auto address = reinterpret_cast<uintptr_t>(pointer);
        for (int i = 0; i < kMaxChunks; ++i) {
            Cell *cells = chunks_[i].load(std::memory_order_acquire);
            if (cells == nullptr) return nullptr;
            const auto base = reinterpret_cast<uintptr_t>(cells);
            if (address < base || address - base >= chunk_cells(i) * sizeof(Cell)) continue;
            if ((address - base) % sizeof(Cell) != 0) return nullptr;
            Cell &cell = cells[(address - base) / sizeof(Cell)];
            return cell.live.load(std::memory_order_acquire) ? reinterpret_cast<T *>(cell.storage) : nullptr;
        }
        return nullptr;
    }

    /** Destroys a live object; of two threads that try at once, one succeeds. */
    bool destroy(T *object) {
        Cell *cell = reinterpret_cast<Cell *>(object);
        if (!cell->live.exchange(false)) return false;
        object->~T();
        give(cell);
        return true;
    }

private:
    struct Cell {
        alignas(T) unsigned char storage[sizeof(T)]; // first: a T* is a Cell*
        std::atomic<bool> live;
        Cell *next_free;
    };
    static constexpr int kMaxChunks = 40;
    static constexpr size_t chunk_cells(int i) { return size_t{32} << i; }

    Cell *take() {
        std::lock_guard<ForkMutex> lock(mutex_);
        if (free_ == nullptr) grow();
        Cell *cell = free_;
        free_ = cell->next_free;
        return cell;
    }
    void give(Cell *cell) {
        std::lock_guard<ForkMutex> lock(mutex_);
        cell->next_free = free_;
        free_ = cell;
    }
    void grow() {
        if (n_chunks_ == kMaxChunks) throw std::bad_alloc();
        const size_t n = chunk_cells(n_chunks_);
        Cell *cells = new Cell[n]();
        for (size_t i = n; i-- > 0;) {
            cells[i].next_free = free_;
            free_ = &cells[i];
        }
        chunks_[n_chunks_++].store(cells, std::memory_order_release);
    }

    ForkMutex mutex_;
    Cell *free_ = nullptr;
    int n_chunks_ = 0;
    std::atomic<Cell *> chunks_[kMaxChunks] = {};
};

/** The slab of one type. Made when the library is loaded and never destroyed: handles may outlive static destructors. */
template <class T>
inline Slab<T> &slab = *new Slab<T>;

} // namespace infini
