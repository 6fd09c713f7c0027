#include "messages/message_operation.h"

#include <algorithm>
#include <cstring>

#include "collective/reduce.h"

namespace dtrain::comm {
namespace {

constexpr std::size_t kSmallestChunk = 32u << 10;
constexpr std::size_t kStagingBytes = 16u << 20;  // of one operation, for all peers' values together
constexpr std::uint32_t kWindow = 4;              // chunks on their way in each flow

std::size_t chunk_bytes_for(int world_size) {
  std::size_t chunk = kLargestChunk;
  while (chunk > kSmallestChunk && chunk * kWindow * static_cast<std::size_t>(world_size) > kStagingBytes) chunk /= 2;
  return chunk;
}

void copy_payload(void* to, const void* from, std::size_t bytes) {
  if (bytes != 0 && to != from) std::memcpy(to, from, bytes);
}

}  // namespace

std::size_t longest_message(int world_size) {
  return std::max(sizeof(MessageHello), chunk_bytes_for(world_size));
}

MessageOperation::MessageOperation(const Descriptor& descriptor, const void* in, void* out, int rank, int world_size)
    : descriptor_(descriptor),
      in_(in),
      out_(out),
      rank_(rank),
      world_size_(world_size),
      element_(size_of(descriptor.type)),
      small_(in_bytes(descriptor, 1) <= sizeof(MessageHello::payload)),
      chunk_bytes_(chunk_bytes_for(world_size)),
      peers_(index(world_size)) {
  if (small_) return;
  own_chunks_ = chunks_of(rank_);
  arrived_.assign(own_chunks_, 0);
  for (int r = 0; r < world_size_; ++r) {
    if (r == rank_) continue;
    Peer& peer = peers_[index(r)];
    if (gives_to(rank_, r)) peer.give.chunks = chunks_of(r);
    if (gives_to(r, rank_)) peer.get.chunks = own_chunks_;
    if (hands_out_to(rank_, r)) peer.hand_out.chunks = own_chunks_;
    if (hands_out_to(r, rank_)) peer.take.chunks = chunks_of(r);
    peer.given.assign(peer.give.chunks, false);
  }
}

Part MessageOperation::part(int r) const {
  const std::size_t count = descriptor_.count;
  if (descriptor_.kind == Kind::kAllGather || descriptor_.kind == Kind::kReduceScatter) {
    return {index(r) * count, (index(r) + 1) * count};
  }
  return part_of(count, descriptor_.type, r, world_size_);
}

std::uint32_t MessageOperation::chunks_of(int r) const {
  return static_cast<std::uint32_t>((part(r).size() * element_ + chunk_bytes_ - 1) / chunk_bytes_);
}

std::size_t MessageOperation::chunk_size(int r, std::uint32_t k) const {
  return std::min(chunk_bytes_, part(r).size() * element_ - chunk_begin(k));
}

const std::byte* MessageOperation::own_values(int r) const {
  const auto* const in = static_cast<const std::byte*>(in_);
  return descriptor_.kind == Kind::kAllGather ? in : in + part(r).begin * element_;
}

std::byte* MessageOperation::results(int r) const {
  if (passed_on_) return passed_on_.get();
  auto* const out = static_cast<std::byte*>(out_);
  return descriptor_.kind == Kind::kReduceScatter ? out : out + part(r).begin * element_;
}

bool MessageOperation::gives_to(int from, int to) const {
  if (from == to) return false;
  return reduces(descriptor_.kind) || (descriptor_.kind == Kind::kBroadcast && from == descriptor_.root);
}

bool MessageOperation::hands_out_to(int from, int to) const {
  if (from == to) return false;
  switch (descriptor_.kind) {
    case Kind::kAllReduce:
    case Kind::kAllGather:
    case Kind::kGatherParts:
      return true;
    case Kind::kBroadcast:
      return to != descriptor_.root;
    case Kind::kReduce:
      return to == descriptor_.root;
    default:
      return false;
  }
}

int MessageOperation::sources() const {
  if (reduces(descriptor_.kind)) return world_size_ - 1;
  return descriptor_.kind == Kind::kBroadcast && rank_ != descriptor_.root ? 1 : 0;
}

void MessageOperation::send(MessageTransport& transport, MessageKind kind, int r, const void* data, std::size_t bytes,
                            std::uint32_t k) {
  const int tag = route_->first_tag + static_cast<int>(kind);
  transport.send({this, kind, false, r, route_->members[index(r)], k}, tag, data, bytes);
}

void MessageOperation::receive(MessageTransport& transport, MessageKind kind, int r, void* data, std::size_t bytes,
                               std::uint32_t k) {
  const int tag = route_->first_tag + static_cast<int>(kind);
  transport.receive({this, kind, true, r, route_->members[index(r)], k}, tag, data, bytes);
}

void MessageOperation::start(const MessageRoute& route, MessageTransport& transport) {
  route_ = &route;
  const bool differ = small_ && descriptor_.kind == Kind::kReduceScatter;
  const Part mine = part(rank_);
  for (int r = 0; r < world_size_; ++r) {
    if (r == rank_) continue;
    Peer& peer = peers_[index(r)];
    peer.hello = std::make_unique_for_overwrite<MessageHello>();
    receive(transport, MessageKind::kHello, r, peer.hello.get(), sizeof(MessageHello), 0);
    if (own_hellos_.empty() || differ) {
      own_hellos_.push_back(std::make_unique_for_overwrite<MessageHello>());
      MessageHello& hello = *own_hellos_.back();
      hello.descriptor = descriptor_;
      if (small_) {
        const std::size_t bytes = in_bytes(descriptor_, 1);
        if (differ) {
          copy_payload(hello.payload, own_values(r), bytes);
        } else if (descriptor_.kind == Kind::kGatherParts) {
          copy_payload(hello.payload, own_values(rank_), mine.size() * element_);
        } else if (descriptor_.kind != Kind::kBroadcast || rank_ == descriptor_.root) {
          copy_payload(hello.payload, in_, bytes);
        }
      }
    }
    const std::size_t payload = small_ ? in_bytes(descriptor_, 1) : 0;
    send(transport, MessageKind::kHello, r, own_hellos_.back().get(), kHelloBytes + payload, 0);
  }
}

void MessageOperation::begin_data() {
  data_begun_ = true;
  if (small_) return;
  if (!reduces(descriptor_.kind)) return;
  if (!keeps_result()) passed_on_ = std::make_unique_for_overwrite<std::byte[]>(part(rank_).size() * element_);
  for (Peer& peer : peers_) {
    const std::size_t slots = std::min<std::size_t>(kWindow, peer.get.chunks);
    if (slots != 0) peer.values = std::make_unique_for_overwrite<std::byte[]>(slots * chunk_bytes_);
  }
}

void MessageOperation::done(const Message& message) {
  Peer& peer = peers_[index(message.peer)];
  switch (message.kind) {
    case MessageKind::kHello:
      if (message.received) {
        peer.entered = true;
        ++entered_;
      } else {
        ++hellos_sent_;
      }
      break;
    case MessageKind::kValues:
      if (message.received) {
        ++peer.get.done;
        ++arrived_[message.chunk];
      } else {
        ++peer.give.done;
        peer.given[message.chunk] = true;
      }
      break;
    case MessageKind::kResult:
      ++(message.received ? peer.take : peer.hand_out).done;
      break;
  }
}

void MessageOperation::reduce_chunk(std::uint32_t k) {
  const std::size_t bytes = chunk_size(rank_, k);
  std::byte* const result = results(rank_) + chunk_begin(k);
  if (!reduces(descriptor_.kind)) {
    // The data of a broadcast was received in its final place.
    if (descriptor_.kind != Kind::kBroadcast) copy_payload(result, own_values(rank_) + chunk_begin(k), bytes);
    return;
  }
  std::vector<const std::byte*> values(index(world_size_));
  for (int r = 0; r < world_size_; ++r) {
    values[index(r)] =
        r == rank_ ? own_values(rank_) + chunk_begin(k) : peers_[index(r)].values.get() + (k % kWindow) * chunk_bytes_;
  }
  reduce_into(reduction_of(descriptor_, world_size_), values, {&result, 1}, bytes / element_);
}

// Each flow has at most kWindow chunks under way, which bounds the memory for received values: chunk k uses the room of
// chunk k - kWindow, so its receive is posted only after that one is reduced.
bool MessageOperation::post(MessageTransport& transport) {
  bool moved = false;
  for (int r = 0; r < world_size_; ++r) {
    if (r == rank_) continue;
    Peer& peer = peers_[index(r)];
    const bool may_send = peer.entered || !transport.keeps_unexpected();
    const auto room = [](const Flow& flow) { return flow.posted < flow.chunks && flow.posted - flow.done < kWindow; };
    while (may_send && room(peer.give)) {
      const std::uint32_t k = peer.give.posted++;
      send(transport, MessageKind::kValues, r, own_values(r) + chunk_begin(k), chunk_size(r, k), k);
      moved = true;
    }
    while (may_send && peer.hand_out.posted < reduced_ && room(peer.hand_out)) {
      const std::uint32_t k = peer.hand_out.posted++;
      send(transport, MessageKind::kResult, r, results(rank_) + chunk_begin(k), chunk_size(rank_, k), k);
      moved = true;
    }
    if (!data_begun_) continue;
    while (peer.get.posted < peer.get.chunks && peer.get.posted < reduced_ + kWindow) {
      const std::uint32_t k = peer.get.posted++;
      std::byte* const to =
          peer.values ? peer.values.get() + (k % kWindow) * chunk_bytes_ : results(rank_) + chunk_begin(k);
      receive(transport, MessageKind::kValues, r, to, chunk_size(rank_, k), k);
      moved = true;
    }
    // The result of a chunk may overwrite its values, so the values must be sent first.
    while (room(peer.take) && (peer.given.empty() || peer.given[peer.take.posted])) {
      const std::uint32_t k = peer.take.posted++;
      receive(transport, MessageKind::kResult, r, results(r) + chunk_begin(k), chunk_size(r, k), k);
      moved = true;
    }
  }
  return moved;
}

bool MessageOperation::advance(MessageTransport& transport) {
  if (finished_) return false;
  bool moved = false;
  if (small_) {
    if (!data_begun_ || hellos_sent_ != world_size_ - 1) return false;
    finish_small();
    end();
    return true;
  }
  while (reduced_ < own_chunks_ && arrived_[reduced_] == sources() && (data_begun_ || sources() == 0)) {
    reduce_chunk(reduced_++);
    moved = true;
  }
  moved = post(transport) || moved;
  if (data_begun_ && reduced_ == own_chunks_ && hellos_sent_ == world_size_ - 1 &&
      std::all_of(peers_.begin(), peers_.end(), [](const Peer& peer) { return peer.finished(); })) {
    end();
  }
  return moved || finished_;
}

// Releases the memory for messages now, because handles may live for long.
void MessageOperation::end() {
  for (Peer& peer : peers_) {
    peer.hello.reset();
    peer.values.reset();
  }
  own_hellos_.clear();
  passed_on_.reset();
  finished_ = true;
}

void MessageOperation::finish_small() {
  const std::size_t bytes = in_bytes(descriptor_, 1);
  if (bytes == 0 || !keeps_result()) return;
  auto* const out = static_cast<std::byte*>(out_);
  const auto payload = [this](int r) { return peers_[index(r)].hello->payload; };
  if (reduces(descriptor_.kind)) {
    const bool whole = descriptor_.kind != Kind::kReduceParts;
    const Part range = whole ? Part{0, descriptor_.count} : part(rank_);
    const bool scattered = descriptor_.kind == Kind::kReduceScatter;
    std::vector<const std::byte*> values(index(world_size_));
    for (int r = 0; r < world_size_; ++r) {
      const std::byte* const all = scattered ? own_values(rank_) : static_cast<const std::byte*>(in_);
      values[index(r)] = (r == rank_ ? all : payload(r)) + range.begin * element_;
    }
    std::byte* const result = out + range.begin * element_;
    return reduce_into(reduction_of(descriptor_, world_size_), values, {&result, 1}, range.size());
  }
  for (int r = 0; r < world_size_; ++r) {
    if (descriptor_.kind == Kind::kBroadcast) {
      if (r == descriptor_.root && r != rank_) copy_payload(out, payload(r), bytes);
    } else if (r == rank_) {
      copy_payload(results(r), own_values(r), part(r).size() * element_);
    } else {
      copy_payload(results(r), payload(r), part(r).size() * element_);
    }
  }
}

}  // namespace dtrain::comm
