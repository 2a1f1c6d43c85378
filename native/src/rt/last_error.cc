/* This thread's last error message. To say "out of memory" needs no memory: where none is left for the text, one that is
 * always there stands for it. */
#include <cstring>

#include "core/thread_local.h"
#include "infini_backend.h"

namespace {

constexpr size_t kSize = 1024;
const infini::ThreadBuffer<kSize> buffer;
INFINI_THREAD_LOCAL bool lost = false; // there was no memory for the message

} // namespace

extern "C" {

infiniStatus_t infinirtSetLastError(infiniStatus_t status, const char *message) {
    const bool empty = message == nullptr || *message == '\0';
    char *const text = empty ? buffer.find() : buffer.get();
    lost = !empty && text == nullptr;
    if (text == nullptr) return status;
    if (empty) message = "";
    const size_t length = strnlen(message, kSize - 1);
    std::memmove(text, message, length); // it may be this very text, or the end of it
    text[length] = '\0';
    return status;
}

const char *infinirtGetLastErrorMessage(void) {
    if (lost) return "out of memory, for the error message too";
    const char *const text = buffer.find();
    return text != nullptr ? text : "";
}

} // extern "C"
