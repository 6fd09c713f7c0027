#include "launch/hanging_ranks.h"

#include <algorithm>
#include <array>
#include <csignal>
#include <cstring>

#include "dtrain/base/error.h"
#include "dtrain/base/text.h"
#include "dtrain/host/proc_file.h"
#include "dtrain/host/processes.h"

namespace dtrain::launcher {
namespace {

constexpr Nanoseconds kPulsePeriod = std::chrono::milliseconds(250);

// Returns where in the kernel an uninterruptible thread waits, and the file of its system call if that is known.
std::string kernel_wait(pid_t pid, pid_t thread) {
  const std::string folder = "/proc/" + std::to_string(pid) + "/task/" + std::to_string(thread) + "/";
  std::string text = host::read_proc_file(folder + "wchan").value_or("");
  if (text == "0") text.clear();
  const std::string call = host::read_proc_file(folder + "syscall").value_or("");
  host::Fields fields(call, ' ');
  fields.skip(1);  // its number
  std::string_view argument = fields.next().value_or("");
  if (!argument.starts_with("0x")) return text;
  argument.remove_prefix(2);
  const auto fd = take_number<std::uint64_t>(argument, 16).value_or(0);
  std::error_code code;
  const auto file = std::filesystem::read_symlink("/proc/" + std::to_string(pid) + "/fd/" + std::to_string(fd), code);
  return code || !file.is_absolute() ? text : text + (text.empty() ? "" : ", ") + "with the file " + file.string();
}

// "rank 1 at batch 12, in forward"
std::string place_of(int rank, const RankSight& sight) {
  std::string text = "rank " + std::to_string(rank);
  if (sight.batch >= 0) text += (sight.in_batch ? " at batch " : " after batch ") + std::to_string(sight.batch);
  const bool says_something =
      sight.in_batch && sight.phase < profile::Phase::kCount && sight.phase != profile::Phase::kOther;
  return says_something ? text + ", in " + std::string(profile::name_of(sight.phase)) : text;
}

// "rank 1 at batch 12, in forward, hangs: it has not got on for 3.2 s, while rank 0 waits in all_reduce(…)"
std::string describe_hang(const WatchedRank& watched, std::span<const SeenRank> all, const Hang& hang) {
  const RankSight& sight = all[static_cast<std::size_t>(watched.rank)].sight;
  std::string text = place_of(watched.rank, sight);
  text += sight.stopped ? ", is stopped (SIGSTOP)" : ", hangs";
  text += ": it has not got on for " + format_duration(hang.still);
  for (std::size_t other = 0; other < all.size(); ++other) {
    const bool hangs = std::find(hang.ranks.begin(), hang.ranks.end(), static_cast<int>(other)) != hang.ranks.end();
    if (hangs || all[other].wait.empty()) continue;
    text += ", while rank " + std::to_string(other) + " waits in " + all[other].wait;
    break;
  }
  const pid_t pid = watched.pulse->pid();
  if (host::read_process_state(pid).state == 'D') {
    const std::string where = kernel_wait(pid, watched.pulse->page().thread);
    text += "\n  it is in the kernel, and cannot be interrupted" + (where.empty() ? "" : ": " + where);
  }
  return text;
}

// Returns the innermost call in the user's own code; empty: not known.
std::string write_stacks(const rank::RunFolder& folder, const WatchedRank& watched, bool stopped,
                         const std::string& cause) {
  const RankPulse& pulse = *watched.pulse;
  const ThreadStacks stacks = take_stacks(pulse.pid(), pulse.page(), pulse.memory(), stopped);
  try {
    write_file_atomic(folder.logs() / ("hang-rank-" + std::to_string(watched.rank) + ".txt"),
                      cause + "\n\n" + stacks.text);
    std::string lines = "dtrain: " + cause + "\n";
    lines +=
        stacks.calls.empty() ? "dtrain: it does not say where it is\n" : "dtrain: its calls, the innermost first:\n";
    for (const std::string& call : stacks.calls) lines += "  " + call + "\n";
    LineAppender(folder.log(watched.rank)).append(lines);
  } catch (const SystemError&) {
    // A full disk: the error has the place.
  }
  return stacks.place;
}

}  // namespace

RankPulse::RankPulse(UniqueFd memory, pid_t pid)
    : memory_(SharedMemory::map(std::move(memory), /*writable=*/false)),
      page_(*reinterpret_cast<const PulsePage*>(memory_.data())),
      pid_(pid) {
  if (memory_.size() < kPulseBytes) throw Error("the pulse of process " + std::to_string(pid) + " is too short");
}

RankSight RankPulse::look() {
  RankSight sight{.moves = page_.moves.load(std::memory_order_acquire),
                  .batch = page_.batch,
                  .first_batch = page_.first_batch,
                  .epochs_first = page_.epochs_first,
                  .in_batch = page_.in_batch != 0,
                  .phase = static_cast<profile::Phase>(page_.phase.load()),
                  .waits = page_.waits != 0};
  if (sight.moves == last_.moves) {
    const host::ProcessState process = host::read_process_state(pid_);
    sight.stopped = process.is_stopped_by_signal();
    sight.traced = process.traced;
    sight.in_queue = host::read_core_wait(page_.thread).value_or(Nanoseconds{0});
  }
  last_ = sight;
  return sight;
}

std::string RankPulse::wait() const {
  if (page_.waits.load(std::memory_order_acquire) == 0) return {};
  return {page_.wait.data(), ::strnlen(page_.wait.data(), page_.wait.size())};
}

Json to_json(const SeenRank& rank) {
  const RankSight& sight = rank.sight;
  return {{"takes_part", sight.takes_part},
          {"stopped", sight.stopped},
          {"traced", sight.traced},
          {"moves", sight.moves},
          {"batch", sight.batch},
          {"first_batch", sight.first_batch},
          {"epochs_first", sight.epochs_first},
          {"in_batch", sight.in_batch},
          {"phase", sight.phase},
          {"waits", sight.waits},
          {"in_queue", sight.in_queue.count()},
          {"wait", rank.wait}};
}

SeenRank seen_rank_of(const Json& json) {
  return {.sight = {.takes_part = json.at("takes_part").get<bool>(),
                    .stopped = json.at("stopped").get<bool>(),
                    .traced = json.at("traced").get<bool>(),
                    .moves = json.at("moves").get<std::uint64_t>(),
                    .batch = json.at("batch").get<std::int64_t>(),
                    .first_batch = json.at("first_batch").get<std::int64_t>(),
                    .epochs_first = json.at("epochs_first").get<std::int64_t>(),
                    .in_batch = json.at("in_batch").get<bool>(),
                    .phase = json.at("phase").get<profile::Phase>(),
                    .waits = json.at("waits").get<bool>(),
                    .in_queue = Nanoseconds(json.at("in_queue").get<std::int64_t>())},
          .wait = json.at("wait").get<std::string>()};
}

std::vector<SeenRank> look_at(const std::vector<WatchedRank>& ranks) {
  std::vector<SeenRank> seen;
  for (const WatchedRank& rank : ranks) {
    SeenRank& one = seen.emplace_back();
    if (rank.pulse && rank.takes_part) one = {rank.pulse->look(), rank.pulse->wait()};
    one.sight.takes_part = rank.takes_part;
  }
  return seen;
}

std::optional<Hang> find_hang(HangWatch& watch, std::span<const SeenRank> all) {
  std::vector<RankSight> sights;
  for (const SeenRank& rank : all) sights.push_back(rank.sight);
  return watch.look(sights);
}

void write_flight_records(const std::vector<WatchedRank>& ranks, std::size_t world_size,
                          const rank::RunFolder& folder) {
  try {
    const std::filesystem::path to = folder.logs() / "flight_record";
    make_folder(to);
    for (const WatchedRank& rank : ranks) {
      const PulsePage* const page = rank.pulse ? &rank.pulse->page() : nullptr;
      const auto name = folder.log(rank.rank).filename().replace_extension(".jsonl");
      write_file_atomic(to / ("rank_" + std::to_string(rank.rank)),
                        pickle_of(flight_record(folder.profile() / name, static_cast<int>(world_size), page)));
    }
  } catch (const SystemError&) {
    // A full disk: the error has the place.
  }
}

std::optional<HangReport> end_hanging(const Hang& hang, const std::vector<WatchedRank>& ranks,
                                      std::span<const SeenRank> all, const rank::RunFolder& folder) {
  const bool each_other = hang.ranks.empty();  // they wait for each other
  std::vector<WatchedRank> hanging;
  for (const WatchedRank& rank : ranks) {
    const bool hangs = each_other || std::find(hang.ranks.begin(), hang.ranks.end(), rank.rank) != hang.ranks.end();
    if (hangs && rank.takes_part && rank.pulse) hanging.push_back(rank);
  }
  if (hanging.empty()) return std::nullopt;
  HangReport report;
  Failure& failure = report.failure;
  failure = {.remedy = "recovery.hang sets how long a rank may take (docs/recovery.md)", .may_pass = true};
  if (each_other) {
    failure.cause = "the ranks wait for each other, and none has got on for " + format_duration(hang.still);
    for (std::size_t rank = 0; rank < all.size(); ++rank) {
      if (!all[rank].sight.takes_part) continue;
      failure.cause += "\n  " + place_of(static_cast<int>(rank), all[rank].sight);
      if (!all[rank].wait.empty()) failure.cause += ", waits in " + all[rank].wait;
    }
  } else {
    failure.rank = hanging.front().rank;
    for (const WatchedRank& rank : hanging) {
      failure.cause += (failure.cause.empty() ? "" : "\n") + describe_hang(rank, all, hang);
    }
  }
  const std::string cause = failure.cause;
  for (const WatchedRank& rank : hanging) {
    const RankSight& sight = all[static_cast<std::size_t>(rank.rank)].sight;
    const std::string place = write_stacks(folder, rank, sight.stopped, cause);
    if (!place.empty()) failure.cause += "\n  rank " + std::to_string(rank.rank) + " is at " + place;
    report.events.push_back({{"rank", rank.rank},
                             {"step", sight.batch},
                             {"phase", profile::name_of(sight.phase)},
                             {"seconds", to_seconds(hang.still)},
                             {"stopped", sight.stopped},
                             {"place", place}});
  }
  failure.cause +=
      "\n  all threads: " + (folder.logs() / ("hang-rank-" + std::to_string(hanging.front().rank) + ".txt")).string();
  for (const WatchedRank& rank : hanging) rank.process->kill_group(SIGKILL);
  return report;
}

std::optional<Failure> HangingRanks::look(const std::vector<WatchedRank>& ranks) {
  const Nanoseconds now = clock_.monotonic();
  if (!watches_ || now < next_look_) return std::nullopt;
  next_look_ = now + kPulsePeriod;
  const std::vector<SeenRank> seen = look_at(ranks);
  const auto hang = find_hang(watch_, seen);
  if (!hang) return std::nullopt;
  write_flight_records(ranks, seen.size(), folder_);
  auto report = end_hanging(*hang, ranks, seen, folder_);
  if (!report) return std::nullopt;
  for (const Json& event : report->events) events_.write("rank_hangs", event);
  return std::move(report->failure);
}

}  // namespace dtrain::launcher
