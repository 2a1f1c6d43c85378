/* What fails inside a call that succeeds is not its caller's to see. */
#pragma once
#include <cstdio>

#include "infini_backend.h"

namespace infini {

constexpr int kMessage = 1024; // bytes of a message that are kept

/** Puts this thread's last error message back when it goes. */
class KeptMessage {
public:
    KeptMessage() { std::snprintf(text_, sizeof text_, "%s", infinirtGetLastErrorMessage()); }
    ~KeptMessage() { infinirtSetLastError(INFINI_STATUS_SUCCESS, text_); }
    KeptMessage(const KeptMessage &) = delete;

private:
    char text_[kMessage];
};

} // namespace infini
