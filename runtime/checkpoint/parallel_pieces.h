// Work on the pieces of files by a few threads, which waits for a disk and for the processor at the same time.
#pragma once

#include <cstddef>
#include <functional>

namespace dtrain::checkpoints {

// Calls work(0) … work(count - 1), each once, on up to `threads` threads besides this one, which calls
// on_progress(number done) some times a second. Each of these threads calls on_start first. The first exception ends
// the work and is thrown here.
void for_each_piece(std::size_t count, int threads, const std::function<void(std::size_t)>& work,
                    const std::function<void(std::size_t)>& on_progress = {},
                    const std::function<void()>& on_start = {});

}  // namespace dtrain::checkpoints
