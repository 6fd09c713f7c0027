// The pieces of an arena that one operation uses.
#pragma once

#include <utility>

#include "collective/descriptor.h"
#include "dtrain/comm/arena.h"

namespace dtrain::comm {

// Pins them from take() to release(). They stay pinned if the operation fails, because peers may still be writing.
class ArenaPins {
 public:
  // `arena` may be null. CommError as Arena::pin().
  void take(Arena* arena, const Descriptor& d, const void* in, const void* out, int world_size) {
    if (!arena) return;
    arena_ = arena;
    in_ = pin(in, in_bytes(d, world_size));
    try {
      if (out != in) out_ = pin(out, out_bytes(d, world_size));
    } catch (...) {
      release();
      throw;
    }
  }
  void release() {
    for (const void** const piece : {&in_, &out_}) {
      if (const void* const pinned = std::exchange(*piece, nullptr)) arena_->unpin(pinned);
    }
  }

 private:
  const void* pin(const void* data, std::size_t bytes) const {
    if (bytes == 0 || !arena_->contains(data, 1)) return nullptr;
    arena_->pin(data, bytes);
    return data;
  }

  Arena* arena_ = nullptr;
  const void* in_ = nullptr;
  const void* out_ = nullptr;
};

}  // namespace dtrain::comm
