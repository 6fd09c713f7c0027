#include "nccl_communicator.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "graph.h"
#include "launch.h"
#include "machine.h"

namespace dtrain::test::fake_gpu {

namespace {

constexpr std::size_t kElementsAtOnce = std::size_t{32} << 10;

Range range_at(const void* data, std::size_t bytes) {
  const auto begin = reinterpret_cast<std::uintptr_t>(data);
  return {begin, begin + bytes};
}

}  // namespace

NcclRank::NcclRank(std::string its_name, int of_ranks, int own_rank, int on_device)
    : name(std::move(its_name)),
      ranks(of_ranks),
      rank(own_rank),
      device(static_cast<c10::DeviceIndex>(on_device)),
      shared(std::make_unique<SharedMemory>(name, of_ranks, own_rank)) {}

void NcclRank::fail(ncclResult_t result, const std::string& text) {
  if (error != ncclSuccess) return;
  error = result;
  last_error = text;
}

bool NcclRank::may_launch() {
  const auto captured = [](const Given& given) { return given.stream->graph != nullptr; };
  if (std::none_of(launching.begin(), launching.end(), captured)) return true;
  if (!std::exchange(came_to_captured, true)) shared->come_to_captured();
  if (!shared->all_came_to_captured()) return false;
  came_to_captured = false;
  return true;
}

bool NcclRank::launch() {
  if (!may_launch()) return false;
  std::vector<Given> group = std::exchange(launching, {});
  const OnDevice on(device);
  std::set<Stream*> streams;
  Clock together;  // NCCL makes the streams of a group wait for each other before and after
  for (const Given& given : group) {
    given.stream->launching = 0;
    streams.insert(given.stream);
    merge(together, given.stream->clock);
  }
  for (Stream* const stream : streams) stream->clock = together;
  for (const Given& given : group) {
    const CallHeader& header = given.call.header;
    const std::size_t size = size_of(header.type);
    Launch launch(*given.stream, name_of(header.kind));
    launch.uses(range_at(given.call.in, elements_in(header, rank, ranks) * size), false);
    launch.uses(range_at(given.call.out, elements_out(header, rank, ranks) * size), true);
    Clock before = launch.begin_later(&FakeGpuCounts::nccl_operations);
    if (launch.captured()) {
      capture(*launch.stream().graph, given.call);
      continue;
    }
    auto operation = std::make_unique<Collective>(*this, given.call, launch.access(), std::move(before),
                                                  machine().adversaries.nccl_hangs());
    queue.push_back(operation.get());
    const auto& [index, number, what] = launch.access();
    if (launched.size() <= index) launched.resize(index + 1);
    launched[index] = number;
    machine().unfinished.add(std::move(operation));
  }
  together.clear();
  for (const Stream* const stream : streams) merge(together, stream->clock);
  for (Stream* const stream : streams) stream->clock = together;
  return true;
}

// Its place among the communicator's operations is that of the replay.
void NcclRank::capture(Graph& graph, const Call& call) {
  graph.add_late([this, call, in_graph = graphs](const Access& replay) {
    if (gone) machine().report.add("a graph is replayed whose communicator was destroyed or aborted");
    auto operation = std::make_unique<Collective>(*this, call, replay, Clock(), machine().adversaries.nccl_hangs());
    queue.push_back(operation.get());
    return operation;
  });
}

void NcclRank::stop() {
  for (const Given& given : std::exchange(launching, {})) given.stream->launching = 0;
  came_to_captured = false;
  if (shared) shared->leave();
  shared.reset();
  machine().unfinished.advance();  // each ends when it notices
}

void NcclRank::tell_host() {
  if (queue.empty()) machine().streams.learn(launched);
}

Collective::Collective(NcclRank& rank, const Call& call, const Access& access, Clock before, bool hangs)
    : Operation(access, std::move(before)), rank_(rank), call_(call), hangs_(hangs), size_(size_of(call.header.type)) {
  const CallHeader& header = call.header;
  most_ = elements_in(header, std::max(header.root, 0), rank.ranks);
}

bool Collective::advance() {
  if (!rank_.shared) {
    abandon();
    return true;
  }
  if (hangs_ || rank_.error != ncclSuccess || rank_.queue.front() != this) return false;
  publish();
  if (headers_.empty() && !read_headers()) return false;
  read_data();
  if (!done()) return false;
  rank_.queue.pop_front();
  ++rank_.ended;
  return true;
}

void Collective::abandon() {
  std::erase(rank_.queue, this);
  const std::size_t bytes = elements_out(call_.header, rank_.rank, rank_.ranks) * size_;
  if (bytes > 0) std::memset(machine().memory.alias(call_.out), 0xFF, bytes);
}

bool Collective::done() const {
  const std::size_t own = elements_in(call_.header, rank_.rank, rank_.ranks) * size_;
  return taken_ == most_ && published_ == sizeof(CallHeader) + own;
}

void Collective::publish() {
  const auto write_rest = [&](const void* data, std::size_t begin, std::size_t bytes) {
    while (published_ < begin + bytes) {
      const std::size_t at = published_ - begin;
      const std::size_t taken = rank_.shared->write(static_cast<const std::byte*>(data) + at, bytes - at);
      if (taken == 0) return false;
      published_ += taken;
    }
    return true;
  };
  if (!write_rest(&call_.header, 0, sizeof call_.header)) return;
  const std::size_t bytes = elements_in(call_.header, rank_.rank, rank_.ranks) * size_;
  if (bytes > 0) write_rest(machine().memory.alias(call_.in), sizeof call_.header, bytes);
}

bool Collective::read_headers() {
  for (int r = 0; r < rank_.ranks; ++r) {
    if (rank_.shared->available(r) < sizeof(CallHeader)) return false;
  }
  headers_.resize(static_cast<std::size_t>(rank_.ranks));
  std::string text;
  bool alike = true;
  for (int r = 0; r < rank_.ranks; ++r) {
    CallHeader& header = headers_[static_cast<std::size_t>(r)];
    rank_.shared->read(r, &header, sizeof header);
    alike &= match(header, headers_.front());
    text += (r == 0 ? ": rank " : ", rank ") + std::to_string(r) + " " + describe(header);
  }
  if (alike) return true;
  rank_.fail(ncclInvalidUsage, "the ranks call different operations as operation " + std::to_string(rank_.ended) +
                                   " of the communicator" + text);
  return false;
}

std::size_t Collective::elements_there() const {
  std::size_t bytes = ~std::size_t{0};
  for (int r = 0; r < rank_.ranks; ++r) {
    if (elements_in(call_.header, r, rank_.ranks) > 0) bytes = std::min(bytes, rank_.shared->available(r));
  }
  return std::min(bytes / size_, most_ - taken_);
}

void Collective::read_data() {
  for (;;) {
    const std::size_t count = std::min(elements_there(), kElementsAtOnce);
    if (count == 0) return;
    take(count);
    taken_ += count;
    publish();  // there may be room now
  }
}

void Collective::take(std::size_t count) {
  const CallHeader& header = call_.header;
  std::vector<std::vector<std::uint64_t>> data;
  for (int r = 0; r < rank_.ranks; ++r) {
    if (elements_in(header, r, rank_.ranks) == 0) continue;
    data.emplace_back((count * size_ + 7) / 8);
    rank_.shared->read(r, data.back().data(), count * size_);
  }
  switch (header.kind) {
    case CallKind::kAllGather:
      for (std::size_t r = 0; r < data.size(); ++r) store(data[r].data(), r * header.count + taken_, count);
      return;
    case CallKind::kBroadcast:
      return store(data.front().data(), taken_, count);
    case CallKind::kReduce:
      if (rank_.rank != header.root) return;
      break;
    default:
      break;
  }
  std::vector<std::uint64_t> result((count * size_ + 7) / 8);
  reduce(headers_, data, count, result.data());
  if (header.kind != CallKind::kReduceScatter) return store(result.data(), taken_, count);
  const std::size_t own = static_cast<std::size_t>(rank_.rank) * header.count;
  const std::size_t begin = std::max(taken_, own);
  const std::size_t end = std::min(taken_ + count, own + header.count);
  if (begin >= end) return;
  store(reinterpret_cast<const std::byte*>(result.data()) + (begin - taken_) * size_, begin - own, end - begin);
}

void Collective::store(const void* data, std::size_t begin, std::size_t count) {
  auto* const out = static_cast<std::byte*>(machine().memory.alias(call_.out));
  std::memcpy(out + begin * size_, data, count * size_);
}

}  // namespace dtrain::test::fake_gpu
