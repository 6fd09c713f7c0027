// Work on the pieces of files by a few threads, so that the disk and the processor work at the same time.
#pragma once

#include <cstddef>
#include <functional>

namespace dtrain::checkpoints {

// Calls work(0) … work(count - 1), each once, on up to `threads` threads besides the calling thread, which calls
// on_progress(number done) some times a second. Each of the threads calls on_start first. The first exception ends the
// work and is passed on.
void for_each_piece(std::size_t count, int threads, const std::function<void(std::size_t)>& work,
                    const std::function<void(std::size_t)>& on_progress = {},
                    const std::function<void()>& on_start = {});

}  // namespace dtrain::checkpoints
