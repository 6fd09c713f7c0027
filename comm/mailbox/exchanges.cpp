// Exchanges: several messages as one operation.
#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "dtrain/base/error.h"
#include "dtrain/comm/mailbox.h"

namespace dtrain::comm {
namespace {

// The messages of one exchange. It is complete when all of them are.
class Exchange final : public WorkState {
 public:
  Exchange(std::vector<Work> works, std::size_t bytes, Nanoseconds enqueued, Nanoseconds ended)
      : works_(std::move(works)), bytes_(bytes), copied_{enqueued, enqueued, ended, ended - enqueued} {}

  bool test() override {
    return std::all_of(works_.begin(), works_.end(), [](Work& work) { return work.test(); });
  }
  void wait() override {
    for (Work& work : works_) work.wait();
  }
  WorkTiming timing() const override {
    WorkTiming all = copied_;
    for (const Work& work : works_) {
      const WorkTiming one = work.timing();
      all.ended = std::max(all.ended, one.ended);
      all.exposed += one.exposed;
    }
    return all;
  }
  std::size_t bytes() const override { return bytes_; }
  std::uint64_t sequence() const override { return works_.empty() ? 0 : works_.front().sequence(); }
  std::vector<MissingRank> missing() const override {
    std::vector<MissingRank> all;
    for (const Work& work : works_) {
      for (MissingRank& one : work.missing()) {
        const bool known = std::any_of(all.begin(), all.end(), [&](const auto& two) { return two.rank == one.rank; });
        if (!known) all.push_back(std::move(one));
      }
    }
    return all;
  }

 private:
  std::vector<Work> works_;
  const std::size_t bytes_;
  const WorkTiming copied_;  // the times of the call itself
};

// Begins the messages of one exchange. All receives are to be begun before the sends, so that what comes has a place.
class ExchangeMaker {
 public:
  ExchangeMaker(Mailbox& mailbox, Members members, Channel channel)
      : mailbox_(mailbox), members_(members), channel_(channel), enqueued_(SystemClock().monotonic()) {
    const auto found = std::find(members.begin(), members.end(), mailbox.rank());
    if (found == members.end()) {
      throw CommError("rank " + std::to_string(mailbox.rank()) + " is not in the group of the exchange it enters");
    }
    me_ = static_cast<std::size_t>(found - members.begin());
  }
  std::size_t me() const { return me_; }
  std::size_t size() const { return members_.size(); }
  std::size_t root(int root) const {
    if (root >= 0 && static_cast<std::size_t>(root) < size()) return static_cast<std::size_t>(root);
    throw CommError("root " + std::to_string(root) + ", where the group has " + std::to_string(size()) + " ranks");
  }
  void check_count(std::size_t blocks) const {
    if (blocks == size()) return;
    throw CommError(std::to_string(blocks) + " blocks, where the group has " + std::to_string(size()) + " ranks");
  }

  void receive(std::size_t member, Block block) {
    received_ += block.bytes;
    if (member != me_) works_.push_back(mailbox_.receive(block.data, block.bytes, members_[member], channel_));
  }
  void send(std::size_t member, ConstBlock block) {
    sent_ += block.bytes;
    if (member != me_) works_.push_back(mailbox_.send(block.data, block.bytes, members_[member], channel_));
  }
  void copy(ConstBlock from, Block to) {
    if (from.bytes != to.bytes) {
      throw CommError("rank " + std::to_string(mailbox_.rank()) + " gives itself " + std::to_string(from.bytes) +
                      " bytes where it expects " + std::to_string(to.bytes));
    }
    if (from.bytes > 0 && from.data != to.data) std::memmove(to.data, from.data, from.bytes);
  }
  Work begun() {
    const Nanoseconds now = SystemClock().monotonic();
    return Work(std::make_shared<Exchange>(std::move(works_), std::max(sent_, received_), enqueued_, now));
  }

 private:
  Mailbox& mailbox_;
  const Members members_;
  const Channel channel_;
  const Nanoseconds enqueued_;
  std::size_t me_ = 0;
  std::vector<Work> works_;
  std::size_t sent_ = 0, received_ = 0;
};

}  // namespace

Work gather(Mailbox& mailbox, Members members, ConstBlock in, std::span<const Block> out, int root, Channel channel) {
  ExchangeMaker exchange(mailbox, members, channel);
  const std::size_t to = exchange.root(root);
  if (exchange.me() == to) {
    exchange.check_count(out.size());
    exchange.copy(in, out[to]);
    for (std::size_t from = 0; from < out.size(); ++from) exchange.receive(from, out[from]);
  } else {
    exchange.send(to, in);
  }
  return exchange.begun();
}

Work scatter(Mailbox& mailbox, Members members, std::span<const ConstBlock> in, Block out, int root, Channel channel) {
  ExchangeMaker exchange(mailbox, members, channel);
  const std::size_t from = exchange.root(root);
  if (exchange.me() == from) {
    exchange.check_count(in.size());
    exchange.copy(in[from], out);
    for (std::size_t to = 0; to < in.size(); ++to) exchange.send(to, in[to]);
  } else {
    exchange.receive(from, out);
  }
  return exchange.begun();
}

// Each rank begins with its neighbour, so that not all send to the same rank first.
Work all_to_all(Mailbox& mailbox, Members members, std::span<const ConstBlock> in, std::span<const Block> out,
                Channel channel) {
  ExchangeMaker exchange(mailbox, members, channel);
  exchange.check_count(in.size());
  exchange.check_count(out.size());
  const std::size_t me = exchange.me();
  const std::size_t size = exchange.size();
  exchange.copy(in[me], out[me]);
  for (std::size_t i = 0; i < size; ++i) exchange.receive((me + size - i) % size, out[(me + size - i) % size]);
  for (std::size_t i = 0; i < size; ++i) exchange.send((me + i) % size, in[(me + i) % size]);
  return exchange.begun();
}

}  // namespace dtrain::comm
