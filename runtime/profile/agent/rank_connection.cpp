#include "agent/rank_connection.h"

#include <cstdio>

#include "dtrain/base/error.h"
#include "messages.h"

namespace dtrain::profile {
namespace {

constexpr std::size_t kWriteBytes = 256 * 1024;  // a write at most: bounds the agent's memory, whatever a ring holds

std::string_view view(const LineBuffer& buffer) {
  return {buffer.data(), buffer.size()};
}

std::string dump_name(int rank) {
  char name[32];
  std::snprintf(name, sizeof name, "rank-%04d.jsonl", rank);
  return name;
}

}  // namespace

RankConnection::Event RankConnection::serve() {
  try {
    for (;;) {
      bool timed_out = false;
      auto message = socket_.receive(std::chrono::milliseconds(0), &timed_out);
      if (!message) return timed_out ? Event::kNothing : Event::kGone;
      const Json value = parse_message(message->data);
      const std::string type = type_of(value);
      if (type == message_type::kHello && !introduced()) {
        introduce(value, *message);
      } else if (type == message_type::kFlush && introduced()) {
        drain();
        socket_.send(to_line({{"type", message_type::kFlushed}, {"id", value.value("id", std::int64_t{0})}}));
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
    refuse("it speaks version " + std::to_string(protocol) + " of the protocol, this agent version " +
           std::to_string(kProtocolVersion));
  }
  if (!facts_.ranks.contains(rank)) {
    refuse("agent '" + facts_.agent_id + "' was not told of a rank " + std::to_string(rank) + " on its host");
  }
  // A second writer would tear the dump of the first.
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
  ring_ = std::move(ring);
  dump_ = std::make_unique<DumpWriter>(facts_.profile_folder / dump_name(rank), clock_);
  const Json fields = {{"kind", "rank"},
                       {"rank", rank_},
                       {"world_size", hello.value("world_size", 1)},
                       {"host", facts_.host},
                       {"agent", facts_.agent_id},
                       {"pid", pid_},
                       {"start_ns", hello.value("start_ns", std::int64_t{0})}};
  dump_->write(header_line(fields, hello.value("header", Json::object()), clock_));
  socket_.send(to_line({{"type", message_type::kWelcome}}));
}

void RankConnection::drain() {
  if (!introduced() || damaged_) return;
  try {
    while (const Record* record = ring_->peek()) {
      append_record(buffer_, *record);
      ring_->pop();
      ++records_;
      if (buffer_.size() < kWriteBytes) continue;
      dump_->write(view(buffer_));
      buffer_.clear();
    }
  } catch (const Error& error) {
    damaged_ = true;
    logger_->error("rank {}: {}", rank_, error.what());
  }
  write_dropped();
  dump_->write(view(buffer_));
  buffer_.clear();
}

void RankConnection::write_dropped() {
  const std::uint64_t total = ring_->dropped();
  if (total == dropped_) return;
  fmt::format_to(std::back_inserter(buffer_), "{{\"record\":\"dropped\",\"time_ns\":{},\"count\":{},\"total\":{}}}\n",
                 clock_.monotonic().count(), total - dropped_, total);
  dropped_ = total;
}

void RankConnection::close() {
  if (!introduced()) return;
  drain();
  const Json end = {{"record", "end"},
                    {"time_ns", clock_.monotonic().count()},
                    {"how", finished_ ? "finished" : "connection lost"},
                    {"records", records_},
                    {"dropped", dropped_},
                    {"lost", dump_->lost()}};
  dump_->write(to_line(end) + "\n");
  socket_.close();
}

void RankConnection::report(const std::string& error) {
  if (reported_ || !introduced() || !socket_) return;
  reported_ = true;
  ring_->set_agent_failed();
  try {
    socket_.send(to_line({{"type", message_type::kError}, {"message", error}}));
  } catch (const Error& failure) {
    logger_->warn("cannot tell rank {} that records are lost: {}", rank_, failure.what());
  }
}

}  // namespace dtrain::profile
