#include "monitor/rank_connection.h"

#include <algorithm>

#include "dtrain/base/error.h"

namespace dtrain::profile {
namespace {

constexpr int kMemorySamples = 200;              // in the time since the rank connected
constexpr std::uint64_t kReleaseRecords = 1024;  // between two releases of the ring's room

std::int64_t signed_of(std::uint64_t count) {
  return static_cast<std::int64_t>(count);
}

}  // namespace

RankConnection::Event RankConnection::serve() {
  try {
    for (;;) {
      bool timed_out = false;
      auto message = socket_.receive(std::chrono::milliseconds(0), &timed_out);
      if (!message) return timed_out ? Event::kNothing : Event::kGone;
      const Json value = parse_message(message->data);
      const std::string type = text_at(value, "type");
      if (type == message_type::kHello && !introduced()) {
        introduce(value, *message);
      } else if (type == message_type::kFlush && introduced()) {
        drain();
        write_memory(clock_.monotonic());
        bounded_->flush();
        socket_.send(to_line(
            {{"type", message_type::kFlushed}, {"id", value.value("id", std::int64_t{0})}, {"lost", dump_->lost()}}));
      } else if (type == message_type::kFinished && introduced()) {
        finished_ = true;
      } else if (type == message_type::kStop) {
        return Event::kStop;
      } else {
        throw CommError("a message of the type '" + type + "' came where it makes no sense");
      }
    }
  } catch (const std::exception& error) {
    logger_->warn("closing the connection of {}: {}", introduced() ? "rank " + std::to_string(rank_) : "a process",
                  error.what());
    return Event::kGone;
  }
}

void RankConnection::introduce(const Json& hello, UnixMessage& message) {
  const auto refuse = [this](const std::string& reason) {
    socket_.send(to_line({{"type", message_type::kRefused}, {"reason", reason}}));
    throw CommError(reason);
  };
  const int rank = hello.value("rank", -1);
  const int protocol = hello.value("protocol", 0);
  if (protocol != kProtocolVersion) {
    refuse("it speaks version " + std::to_string(protocol) + " of the protocol, this monitor version " +
           std::to_string(kProtocolVersion));
  }
  if (!facts_.ranks.contains(rank)) {
    refuse("the monitor of '" + facts_.agent_id + "' does not expect a rank " + std::to_string(rank) + " on its host");
  }
  // A second writer would damage the dump of the first.
  if (is_connected_(rank)) refuse("rank " + std::to_string(rank) + " is connected already");
  if (message.fds.size() != 1) refuse("its hello came without a ring");
  std::unique_ptr<RingReader> ring;
  try {
    ring = std::make_unique<RingReader>(std::move(message.fds.front()));
  } catch (const Error& error) {
    refuse(error.what());
  }
  rank_ = rank;
  pid_ = hello.value("pid", 0);
  introduced_at_ = next_memory_ = clock_.monotonic();
  ring_ = std::move(ring);
  dropped_ = ring_->dropped_noted();
  dump_ = std::make_unique<DumpWriter>(facts_.profile_folder / fmt::format("rank-{:04}.jsonl", rank), clock_);
  Json fields = {{"kind", "rank"},
                 {"rank", rank_},
                 {"world_size", hello.value("world_size", 1)},
                 {"host", facts_.host},
                 {"agent", facts_.agent_id},
                 {"pid", pid_},
                 {"start_ns", hello.value("start_ns", std::int64_t{0})}};
  if (const auto cpus = hello.find("cpus"); cpus != hello.end()) fields["cpus"] = *cpus;
  bounded_ =
      std::make_unique<BoundedDump>(*dump_, BoundedDump::kStepsInFull, value_at<std::int64_t>(hello, "first_batch"));
  dump_->write(header_line(fields, hello.value("header", Json::object()), clock_));
  socket_.send(to_line({{"type", message_type::kWelcome}}));
}

void RankConnection::drain() {
  if (!introduced() || damaged_) return;
  try {
    while (const Record* record = ring_->peek()) {
      bounded_->add(*record);
      totals_.add(*record);
      ring_->pop();
      if (++records_ % kReleaseRecords == 0) release();
    }
  } catch (const Error& error) {
    damaged_ = true;
    logger_->error("rank {}: {}", rank_, error.what());
  }
  write_dropped();
  release();
}

// The order matters: if the monitor is killed between the two, the next monitor writes some records again, but none is
// missing.
void RankConnection::release() {
  bounded_->flush();
  ring_->release();
}

void RankConnection::sample_memory(std::chrono::nanoseconds shortest_period) {
  const Nanoseconds now = clock_.monotonic();
  if (!introduced() || now < next_memory_) return;
  // The pauses grow so that a run of weeks has as many samples for each doubling of its length as a short one.
  next_memory_ = now + std::max(shortest_period, (now - introduced_at_) / kMemorySamples);
  write_memory(now);
}

void RankConnection::write_memory(Nanoseconds now) {
  const auto memory = host::read_process_memory(pid_);
  if (!memory) return;
  const MemoryRecord record{now.count(),
                            bounded_->last_batch(),
                            signed_of(memory->resident_bytes),
                            signed_of(memory->peak_bytes),
                            signed_of(memory->anonymous_bytes),
                            ring_->free_heap()};
  bounded_->add_lines(line_of("memory", record));
}

void RankConnection::write_dropped() {
  const std::uint64_t total = ring_->dropped();
  if (total == dropped_) return;
  bounded_->add_lines(fmt::format("{{\"record\":\"dropped\",\"time_ns\":{},\"count\":{},\"total\":{}}}\n",
                                  clock_.monotonic().count(), total - dropped_, total));
  dropped_ = total;
  ring_->note_dropped(total);
}

void RankConnection::close() {
  if (!introduced()) return;
  drain();
  const EndRecord end{.time_ns = clock_.monotonic().count(),
                      .how = finished_ ? "finished" : "connection lost",
                      .records = signed_of(records_),
                      .dropped = signed_of(dropped_),
                      .lost = signed_of(dump_->lost())};
  dump_->write(line_of("end", end));
  socket_.close();
}

RankTotals RankConnection::totals() const {
  RankTotals totals = totals_;
  totals.rank = rank_;
  totals.dropped = dropped_;
  totals.lost = lost();
  return totals;
}

bool RankConnection::report(const std::string& error) {
  if (!introduced() || !socket_) return false;
  ring_->set_monitor_failed();
  try {
    return socket_.send(to_line({{"type", message_type::kError}, {"message", error}}));
  } catch (const Error& failure) {
    logger_->warn("cannot report to rank {} that records are lost: {}", rank_, failure.what());
    return false;
  }
}

}  // namespace dtrain::profile
