/* When results are better written past the caches. */
#pragma once

namespace infini {

/** Whether an operator that writes so many bytes, none of them read before, should stream them to memory: a store that does so
 *  need not fetch the line first. Below half of the last-level cache what was written is likely to be found there again. The
 *  environment variable INFINIOP_STREAM_BYTES, read once, sets another number. */
bool worth_streaming(double bytes_written);

} // namespace infini
