// The messages of one peer: those that are expected, those that have come before, and what the peer may send.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tcp/frame.h"

namespace dtrain::comm {

class Inbox {
 public:
  // `who` names the peer in errors; `longest` is the longest message in bytes; messages that are over are added to
  // `over`.
  Inbox(std::string who, std::size_t longest, std::vector<Message>& over);

  void expect(const Expected& expected);
  bool expects_any() const { return !expected_.empty(); }

  // Where the bytes of a message go.
  struct Place {
    std::byte* to = nullptr;
    std::optional<Message> message{};      // it was expected
    std::unique_ptr<std::byte[]> early{};  // it was not
  };
  // A message begins to arrive, and has arrived. begin() throws a CommError if the peer may not send it.
  Place begin(const FrameHeader& header);
  void end(const FrameHeader& header, Place place);

  // Returns the grants that the peer has not been told.
  std::vector<FrameHeader> take_grants();
  bool has_grants() const { return !grants_.empty(); }

 private:
  struct Early {
    FrameHeader header;
    std::unique_ptr<std::byte[]> data;
  };
  std::vector<Expected>::iterator find_expected(const FrameHeader& header);
  void check(const FrameHeader& header);
  void check_fits(const FrameHeader& header, const Expected& expected) const;
  void put(const FrameHeader& header, const std::byte* data, const Expected& to);
  void grant(int tag, std::uint32_t chunks);

  const std::string who_;
  const std::size_t longest_;
  std::vector<Message>& over_;
  std::vector<Expected> expected_;  // few: those of a window
  std::vector<Early> early_;
  std::size_t arriving_early_ = 0;
  FlowLimits limits_;
  std::vector<FrameHeader> grants_;
};

}  // namespace dtrain::comm
