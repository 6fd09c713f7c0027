#include "tcp/stream.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace dtrain::comm {
namespace {

constexpr std::size_t kReadAtOnce = 512u << 10;   // then what has arrived is used, while it is in the cache
constexpr std::size_t kWriteAtOnce = 512u << 10;  // then urgent frames may go first again
constexpr std::size_t kPieces = 64;

std::size_t size_of(const OutgoingFrame& frame) {
  return sizeof(FrameHeader) + frame.header.bytes;
}

// The pieces of memory that one call writes.
struct Pieces {
  std::array<iovec, kPieces> list{};
  std::size_t count = 0;
  std::size_t bytes = 0;

  bool full() const { return count + 2 > kPieces || bytes >= kWriteAtOnce; }
  void add(const void* data, std::size_t size) {
    if (size == 0) return;
    list[count++] = {const_cast<void*>(data), size};
    bytes += size;
  }
  void add(const OutgoingFrame& frame, std::size_t written) {
    const std::size_t of_header = std::min(written, sizeof(FrameHeader));
    add(reinterpret_cast<const std::byte*>(&frame.header) + of_header, sizeof(FrameHeader) - of_header);
    const std::size_t of_data = written - of_header;
    add(static_cast<const std::byte*>(frame.data) + of_data, frame.header.bytes - of_data);
  }
  std::span<iovec> span() { return {list.data(), count}; }
};

}  // namespace

bool Stream::wrote(std::deque<OutgoingFrame>& queue, std::size_t& bytes, std::vector<Message>& over) {
  while (bytes > 0 && !queue.empty()) {
    OutgoingFrame& frame = queue.front();
    if (bytes < size_of(frame)) {
      current_ = frame;
      written_ = bytes;
      bytes = 0;
    } else {
      bytes -= size_of(frame);
      if (frame.message) over.push_back(*frame.message);
    }
    queue.pop_front();
  }
  return bytes > 0;
}

bool Stream::write(std::vector<Message>& over) {
  while (writable_ && waiting() > 0) {
    Pieces pieces;
    if (current_) pieces.add(*current_, written_);
    for (const auto* queue : {&urgent_, &bulk_}) {
      for (auto frame = queue->begin(); frame != queue->end() && !pieces.full(); ++frame) pieces.add(*frame, 0);
    }
    const DataSocket::Moved moved = socket_.write(pieces.span());
    if (moved.ended) {
      broken_ = true;
      if (moved.error != EPIPE) error_ = moved.error;  // the socket reports it once
      writable_ = false;
      readable_ = !ended_;
      return false;
    }
    writable_ = moved.again;
    std::size_t bytes = moved.bytes;
    if (current_ && bytes > 0) {
      const std::size_t left = size_of(*current_) - written_;
      written_ += std::min(bytes, left);
      if (bytes >= left) {
        if (current_->message) over.push_back(*current_->message);
        current_.reset();
      }
      bytes -= std::min(bytes, left);
    }
    if (wrote(urgent_, bytes, over)) wrote(bulk_, bytes, over);
  }
  return writable_;
}

bool Stream::read(FrameSink& sink) {
  for (std::size_t done = 0; readable_ && done < kReadAtOnce;) {
    std::array<iovec, 2> pieces{iovec{to_, left_}, iovec{buffer_.data() + buffered_, buffer_.size() - buffered_}};
    const DataSocket::Moved moved = socket_.read(std::span(pieces).subspan(left_ == 0 ? 1 : 0));
    if (moved.ended) {
      readable_ = writable_ = false;
      ended_ = true;
      if (moved.error != 0) error_ = moved.error;
      cause_ = moved.cause;
      return false;
    }
    readable_ = moved.again || (to_its_end_ && moved.bytes > 0);
    done += moved.bytes;
    take(moved.bytes, sink);
  }
  return readable_;
}

void Stream::begin_frame(const FrameHeader& header, FrameSink& sink) {
  header_ = header;
  to_ = nullptr;
  left_ = header.bytes;
  if (header.kind == FrameKind::kMessage) {
    place_ = sink.inbox().begin(header);
    to_ = place_.to;
  } else if (header.kind == FrameKind::kGrant && header.bytes == 0) {
    sink.granted(header);
  } else if (header.kind == FrameKind::kGoodbye && header.bytes == 0) {
    sink.said_goodbye();
  } else {
    sink.unknown();
  }
}

// While a frame lacks bytes, there is nothing in the buffer.
void Stream::take(std::size_t bytes, FrameSink& sink) {
  const auto finish = [&] {
    if (header_.kind == FrameKind::kMessage) sink.inbox().end(header_, std::move(place_));
  };
  if (left_ > 0) {
    const std::size_t direct = std::min(bytes, left_);
    to_ += direct;
    left_ -= direct;
    bytes -= direct;
    if (left_ > 0) return;
    finish();
  }
  buffered_ += bytes;
  std::size_t at = 0;
  while (buffered_ - at >= sizeof(FrameHeader)) {
    FrameHeader header;
    std::memcpy(&header, buffer_.data() + at, sizeof header);
    at += sizeof header;
    begin_frame(header, sink);
    const std::size_t here = std::min(buffered_ - at, left_);
    if (here > 0) std::memcpy(to_, buffer_.data() + at, here);
    at += here;
    to_ += here;
    left_ -= here;
    if (left_ == 0) finish();
  }
  std::memmove(buffer_.data(), buffer_.data() + at, buffered_ - at);
  buffered_ -= at;
}

}  // namespace dtrain::comm
