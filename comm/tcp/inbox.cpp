#include "tcp/inbox.h"

#include <algorithm>
#include <cstring>

#include "dtrain/base/error.h"

namespace dtrain::comm {
namespace {

constexpr std::size_t kEarlyMessages = 128;  // 16 operations ahead send at most a hello and 4 chunks each

bool same(const FrameHeader& header, int tag, std::uint32_t chunk) {
  return header.tag == tag && header.chunk == chunk;
}

bool is_known(int tag) {
  const int kind = tag & ((1 << kMessageBits) - 1);
  return tag >= 0 && tag >> (kSequenceBits + kMessageBits) == 0 && kind <= static_cast<int>(MessageKind::kResult);
}

}  // namespace

Inbox::Inbox(std::string who, std::size_t longest, std::vector<Message>& over)
    : who_(std::move(who)), longest_(longest), over_(over) {}

std::vector<Expected>::iterator Inbox::find_expected(const FrameHeader& header) {
  return std::find_if(expected_.begin(), expected_.end(),
                      [&](const Expected& one) { return same(header, one.tag, one.message.chunk); });
}

void Inbox::check_fits(const FrameHeader& header, const Expected& expected) const {
  // Only the length of a hello varies.
  if (is_hello(header.tag) ? header.bytes <= expected.bytes : header.bytes == expected.bytes) return;
  throw CommError(who_ + " has sent " + std::to_string(header.bytes) + " bytes where " +
                  std::to_string(expected.bytes) + " were expected");
}

void Inbox::put(const FrameHeader& header, const std::byte* data, const Expected& to) {
  check_fits(header, to);
  if (header.bytes != 0) std::memcpy(to.data, data, header.bytes);
  over_.push_back(to.message);
}

void Inbox::expect(const Expected& expected) {
  if (is_hello(expected.tag)) {
    limits_.open(expected.tag);
  } else {
    grant(expected.tag, expected.message.chunk + 1);
  }
  const auto early = std::find_if(early_.begin(), early_.end(), [&](const Early& one) {
    return same(one.header, expected.tag, expected.message.chunk);
  });
  if (early == early_.end()) {
    expected_.push_back(expected);
    return;
  }
  const Early one = std::move(*early);
  early_.erase(early);
  put(one.header, one.data.get(), expected);
}

void Inbox::grant(int tag, std::uint32_t chunks) {
  std::uint32_t* const limit = limits_.find(tag);
  if (!limit || chunks <= *limit) return;
  *limit = chunks;
  const auto known = std::find_if(grants_.begin(), grants_.end(), [&](const auto& one) { return one.tag == tag; });
  if (known != grants_.end()) {
    known->chunk = chunks;
  } else {
    grants_.push_back({FrameKind::kGrant, tag, chunks, 0});
  }
}

std::vector<FrameHeader> Inbox::take_grants() {
  return std::exchange(grants_, {});
}

void Inbox::check(const FrameHeader& header) {
  if (header.bytes > longest_) {
    throw CommError(who_ + " has sent a message of " + std::to_string(header.bytes) + " bytes; at most " +
                    std::to_string(longest_) + " are allowed");
  }
  if (is_known(header.tag)) {
    const std::uint32_t* const limit = limits_.find(header.tag);
    if (is_hello(header.tag) ? header.chunk == 0 : limit && header.chunk < *limit) return;
  }
  throw CommError(who_ + " has sent chunk " + std::to_string(header.chunk) + " of tag " + std::to_string(header.tag) +
                  ", for which it was not asked");
}

Inbox::Place Inbox::begin(const FrameHeader& header) {
  check(header);
  if (const auto expected = find_expected(header); expected != expected_.end()) {
    check_fits(header, *expected);
    Place place{.to = expected->data, .message = expected->message};
    *expected = expected_.back();
    expected_.pop_back();
    return place;
  }
  const bool twice = std::any_of(early_.begin(), early_.end(),
                                 [&](const Early& one) { return same(one.header, header.tag, header.chunk); });
  if (twice || early_.size() + arriving_early_ >= kEarlyMessages) {
    throw CommError(who_ + " has sent " + (twice ? "a message twice" : "more messages than its operations have"));
  }
  ++arriving_early_;
  Place place{.early = std::make_unique_for_overwrite<std::byte[]>(header.bytes)};
  place.to = place.early.get();
  return place;
}

void Inbox::end(const FrameHeader& header, Place place) {
  if (place.message) {
    over_.push_back(*place.message);
    return;
  }
  --arriving_early_;
  const auto expected = find_expected(header);  // it may be by now
  if (expected == expected_.end()) {
    early_.push_back({header, std::move(place.early)});
    return;
  }
  put(header, place.early.get(), *expected);
  expected_.erase(expected);
}

}  // namespace dtrain::comm
