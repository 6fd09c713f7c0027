#include "mailbox/mail_peer.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "dtrain/base/error.h"

namespace dtrain::comm {
namespace {

constexpr std::size_t kPartMost = 64u << 10;      // bytes; then other frames may go
constexpr std::size_t kReadOfOnePeer = 1u << 20;  // bytes; then the other peers are looked after
constexpr std::size_t kRoomToldAt = kKeptMost / 4;

std::size_t room_for(std::size_t bytes) {
  return bytes + kKeptOverhead;
}

}  // namespace

MailHeader MailPeer::header_of(MailFrame kind, const MailWork& work, std::uint32_t id, std::size_t bytes) const {
  return {.kind = kind, .group = work.channel.group, .tag = work.channel.tag, .id = id, .bytes = bytes};
}

std::optional<MailPeer::Outgoing> MailPeer::next_frame() {
  if (!answers_.empty()) {
    const MailHeader answer = answers_.front();
    answers_.pop_front();
    return Outgoing{answer};
  }
  if (!messages_.empty()) {
    SharedMail work = std::move(messages_.front());
    messages_.pop_front();
    sink_.started(*work);
    if (work->size <= kEagerMost && room_for(work->size) <= room_) {
      room_ -= room_for(work->size);
      const MailHeader header = header_of(MailFrame::kMessage, *work, 0, work->size);
      return Outgoing{header, work->data, std::move(work)};
    }
    const MailHeader offer = header_of(MailFrame::kOffer, *work, next_id_++, work->size);
    offered_.emplace(offer.id, std::move(work));
    return Outgoing{offer};
  }
  if (granted_.empty()) return std::nullopt;
  return next_part();
}

MailPeer::Outgoing MailPeer::next_part() {
  auto [id, work] = std::move(granted_.front());
  granted_.pop_front();
  const std::size_t bytes = std::min(kPartMost, work->size - work->moved);
  const MailHeader header = header_of(MailFrame::kPart, *work, id, bytes);
  const std::byte* const data = work->data + work->moved;
  return Outgoing{header, data, std::move(work)};
}

void MailPeer::sent(const Outgoing& frame) {
  if (!frame.work) return;
  if (frame.header.kind == MailFrame::kPart) {
    frame.work->moved += frame.header.bytes;
    if (frame.work->moved < frame.work->size) {
      granted_.emplace_back(frame.header.id, frame.work);
      return;
    }
  }
  sink_.completed(frame.work);
}

bool MailPeer::write() {
  bool moved = false;
  for (;;) {
    if (!current_) current_ = next_frame();
    if (!current_) {
      pipe_->write({});  // what it holds back
      return moved;
    }
    const std::size_t of_header = std::min(current_->written, sizeof(MailHeader));
    const std::size_t of_data = current_->written - of_header;
    std::array<iovec, 2> pieces{
        iovec{reinterpret_cast<std::byte*>(&current_->header) + of_header, sizeof(MailHeader) - of_header},
        iovec{const_cast<std::byte*>(current_->data) + of_data, current_->bytes() - of_data}};
    const std::size_t bytes = pipe_->write(std::span(pieces).first(current_->bytes() > of_data ? 2 : 1));
    current_->written += bytes;
    moved = moved || bytes > 0;
    if (current_->written < sizeof(MailHeader) + current_->bytes()) return moved;
    const Outgoing frame = *std::exchange(current_, std::nullopt);
    sent(frame);
  }
}

bool MailPeer::read() {
  std::size_t done = 0;
  while (done < kReadOfOnePeer) {
    if (header_read_ < sizeof(MailHeader)) {
      auto* const header = reinterpret_cast<std::byte*>(&header_);
      const std::size_t bytes = pipe_->read(header + header_read_, sizeof(MailHeader) - header_read_);
      if (bytes == 0) break;
      done += bytes;
      header_read_ += bytes;
      if (header_read_ < sizeof(MailHeader)) continue;
      begin_frame();
    }
    if (left_ > 0) {
      const std::size_t bytes = pipe_->read(to_, left_);
      if (bytes == 0) break;
      done += bytes;
      to_ += bytes;
      left_ -= bytes;
    }
    if (left_ > 0) continue;
    header_read_ = 0;
    end_frame();
  }
  return done > 0;
}

void MailPeer::begin_frame() {
  left_ = 0;
  switch (header_.kind) {
    case MailFrame::kMessage:
      return begin_message();
    case MailFrame::kOffer: {
      const auto offer = std::make_shared<Arrival>();
      *offer = {.from = rank_, .channel = header_.channel(), .bytes = header_.bytes, .offered = true, .id = header_.id};
      return sink_.arrived(offer);
    }
    case MailFrame::kGrant: {
      SharedMail work = known(offered_);
      work->granted = true;
      granted_.emplace_back(header_.id, std::move(work));
      return;
    }
    case MailFrame::kPart:
      return begin_part();
    case MailFrame::kRoom:
      if (header_.bytes > kKeptMost - room_) refuse("room that it does not have");
      room_ += header_.bytes;
      return;
    case MailFrame::kMismatch:
      return sink_.differs(rank_, header_);
  }
  refuse("what is no frame of dtrain");
}

void MailPeer::begin_message() {
  if (header_.bytes > kEagerMost || used_ + room_for(header_.bytes) > kKeptMost) {
    refuse("a message of " + std::to_string(header_.bytes) + " bytes for which there is no room");
  }
  used_ += room_for(header_.bytes);
  arrival_ = std::make_shared<Arrival>();
  arrival_->from = rank_;
  arrival_->channel = header_.channel();
  arrival_->bytes = left_ = header_.bytes;
  sink_.arrived(arrival_);
  if (!arrival_->receive) arrival_->kept = std::make_unique_for_overwrite<std::byte[]>(left_);
  to_ = arrival_->receive ? arrival_->receive->data : arrival_->kept.get();
}

void MailPeer::begin_part() {
  const auto found = receiving_.find(header_.id);
  if (found == receiving_.end()) refuse("a part of message " + std::to_string(header_.id) + ", which has no place");
  part_of_ = found->second;
  const std::size_t due = part_of_->size - part_of_->moved;
  if (header_.bytes > due || (header_.bytes == 0 && due > 0)) refuse("a part of another size");
  to_ = part_of_->data + part_of_->moved;
  left_ = header_.bytes;
}

void MailPeer::end_frame() {
  if (arrival_) {
    const auto arrival = std::exchange(arrival_, nullptr);
    arrival->whole = true;
    if (arrival->receive) finish(arrival->receive, *arrival);
  } else if (part_of_) {
    const SharedMail receive = std::exchange(part_of_, nullptr);
    receive->moved += header_.bytes;
    if (receive->moved < receive->size) return;
    receiving_.erase(header_.id);
    sink_.completed(receive);
  }
}

void MailPeer::take(Arrival& arrival, SharedMail receive) {
  if (!arrival.offered) {
    if (arrival.whole) return finish(receive, arrival);
    arrival.receive = std::move(receive);  // end_frame() goes on
    return;
  }
  receive->granted = true;
  answers_.push_back(header_of(MailFrame::kGrant, *receive, arrival.id, 0));
  receiving_.emplace(arrival.id, std::move(receive));
}

// All bytes of a small message are here.
void MailPeer::finish(const SharedMail& receive, Arrival& arrival) {
  if (arrival.kept && arrival.bytes > 0) std::memcpy(receive->data, arrival.kept.get(), arrival.bytes);
  free_room(room_for(arrival.bytes));
  sink_.completed(receive);
}

void MailPeer::free_room(std::size_t bytes) {
  freed_ += bytes;
  if (freed_ < kRoomToldAt) return;
  used_ -= freed_;
  answers_.push_back({.kind = MailFrame::kRoom, .bytes = std::exchange(freed_, 0)});
}

SharedMail MailPeer::known(std::unordered_map<std::uint32_t, SharedMail>& works) const {
  const auto found = works.find(header_.id);
  if (found == works.end()) refuse("a grant of message " + std::to_string(header_.id) + ", which was not offered");
  SharedMail work = std::move(found->second);
  works.erase(found);
  return work;
}

void MailPeer::refuse(const std::string& what) const {
  throw CommError(name_ + " has sent " + what);
}

}  // namespace dtrain::comm
