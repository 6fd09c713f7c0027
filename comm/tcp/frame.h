// What travels over a data connection: frames, each a header and the bytes of one message, as the processor has them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "messages/message_thread.h"
#include "messages/message_transport.h"

namespace dtrain::comm {

enum class FrameKind : std::uint32_t {
  kMessage = 0x64740001,  // `bytes` follow
  kGrant,                 // the receiver of the flow `tag` takes its chunks up to `chunk`, that one not included
  kGoodbye,               // nothing follows
};

struct FrameHeader {
  FrameKind kind = FrameKind::kMessage;
  std::int32_t tag = 0;
  std::uint32_t chunk = 0;
  std::uint32_t bytes = 0;
};
static_assert(sizeof(FrameHeader) == 16);

// Chunks of a flow that its sender may send before the receiver grants more. It bounds the memory for messages that
// come before they are expected, and lets small operations do without grants.
inline constexpr std::uint32_t kChunksAhead = 2;

// The chunks that may be sent, of the flows of the operations that have begun: a flow is a tag, in one direction.
class FlowLimits {
 public:
  // An operation begins: its hello has this tag.
  void open(int hello_tag) {
    Slot& slot = slots_[index(hello_tag)];
    slot = {hello_tag >> kMessageBits, {}};
    for (std::uint32_t& limit : slot.limits) limit = kChunksAhead;
  }
  // Null: no operation of this tag has begun.
  std::uint32_t* find(int tag) {
    Slot& slot = slots_[index(tag)];
    return slot.operation == tag >> kMessageBits ? &slot.limits[tag & ((1 << kMessageBits) - 1)] : nullptr;
  }

 private:
  static constexpr std::size_t kSlots = 256;  // operations that are under way at once are far fewer
  struct Slot {
    int operation = -1;
    std::uint32_t limits[1 << kMessageBits] = {};
  };
  static std::size_t index(int tag) { return static_cast<std::size_t>(tag >> kMessageBits) % kSlots; }

  Slot slots_[kSlots];
};

inline bool is_hello(int tag) {
  return (tag & ((1 << kMessageBits) - 1)) == static_cast<int>(MessageKind::kHello);
}

// A message that its receiver expects.
struct Expected {
  Message message;
  int tag = 0;
  std::byte* data = nullptr;
  std::size_t bytes = 0;
};

}  // namespace dtrain::comm
