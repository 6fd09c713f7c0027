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

struct ProcessState {
  char state = '?';  // as in /proc/PID/status
  bool traced = false;
};

ProcessState read_state(pid_t pid) {
  const auto text = host::read_proc_file("/proc/" + std::to_string(pid) + "/status");
  const auto after = [&](std::string_view key) {
    const std::size_t at = text ? text->find(key) : std::string::npos;
    return at == std::string::npos ? std::string_view() : std::string_view(*text).substr(at + key.size());
  };
  const std::string_view state = after("\nState:\t"), tracer = after("\nTracerPid:\t");
  return {.state = state.empty() ? '?' : state[0], .traced = !tracer.empty() && tracer[0] != '0'};
}

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

std::string wait_of(const PulsePage& page) {
  if (page.waits.load(std::memory_order_acquire) == 0) return {};
  return {page.wait.data(), ::strnlen(page.wait.data(), page.wait.size())};
}

// "rank 1 at batch 12, in forward"
std::string place_of(int rank, const RankSight& sight) {
  std::string text = "rank " + std::to_string(rank);
  if (sight.batch >= 0) text += (sight.in_batch ? " at batch " : " after batch ") + std::to_string(sight.batch);
  const bool says_something =
      sight.in_batch && sight.phase < profile::Phase::kCount && sight.phase != profile::Phase::kOther;
  return says_something ? text + ", in " + std::string(profile::name_of(sight.phase)) : text;
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
    const ProcessState process = read_state(pid_);
    sight.stopped = process.state == 'T' && !process.traced;
    sight.traced = process.traced;
    sight.in_queue = host::read_core_wait(page_.thread).value_or(Nanoseconds{0});
  }
  last_ = sight;
  return sight;
}

// "rank 1 at batch 12, in forward, hangs: it has not got on for 3.2 s, while rank 0 waits in all_reduce(…)"
std::string HangingRanks::describe(int rank, const std::vector<WatchedRank>& ranks,
                                   const std::vector<RankSight>& sights, const Hang& hang) const {
  const auto at = static_cast<std::size_t>(rank);
  const pid_t pid = ranks[at].pulse->pid();
  std::string text = place_of(rank, sights[at]);
  text += sights[at].stopped ? ", is stopped (SIGSTOP)" : ", hangs";
  text += ": it has not got on for " + format_duration(hang.still);
  for (std::size_t other = 0; other < ranks.size(); ++other) {
    const bool hangs = std::find(hang.ranks.begin(), hang.ranks.end(), static_cast<int>(other)) != hang.ranks.end();
    const std::string wait = hangs || !ranks[other].pulse ? std::string() : wait_of(ranks[other].pulse->page());
    if (wait.empty()) continue;
    text += ", while rank " + std::to_string(other) + " waits in " + wait;
    break;
  }
  if (read_state(pid).state == 'D') {
    const std::string where = kernel_wait(pid, ranks[at].pulse->page().thread);
    text += "\n  it is in the kernel, and cannot be interrupted" + (where.empty() ? "" : ": " + where);
  }
  return text;
}

// Returns the innermost call in the user's own code; empty: not known.
std::string HangingRanks::write_stacks(int rank, const WatchedRank& watched, bool stopped,
                                       const std::string& cause) const {
  const RankPulse& pulse = *watched.pulse;
  const ThreadStacks stacks = take_stacks(pulse.pid(), pulse.page(), pulse.memory(), stopped);
  try {
    write_file_atomic(folder_.logs() / ("hang-rank-" + std::to_string(rank) + ".txt"), cause + "\n\n" + stacks.text);
    std::string lines = "dtrain: " + cause + "\n";
    lines +=
        stacks.calls.empty() ? "dtrain: it does not say where it is\n" : "dtrain: its calls, the innermost first:\n";
    for (const std::string& call : stacks.calls) lines += "  " + call + "\n";
    LineAppender(folder_.log(rank)).append(lines);
  } catch (const SystemError&) {
    // A full disk: the error has the place.
  }
  return stacks.place;
}

void HangingRanks::write_flight_records(const std::vector<WatchedRank>& ranks) const {
  try {
    const std::filesystem::path to = folder_.logs() / "flight_record";
    make_folder(to);
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
      const PulsePage* const page = ranks[rank].pulse ? &ranks[rank].pulse->page() : nullptr;
      const auto name = folder_.log(static_cast<int>(rank)).filename().replace_extension(".jsonl");
      write_file_atomic(to / ("rank_" + std::to_string(rank)),
                        pickle_of(flight_record(folder_.profile() / name, static_cast<int>(ranks.size()), page)));
    }
  } catch (const SystemError&) {
    // A full disk: the error has the place.
  }
}

std::optional<Failure> HangingRanks::look(const std::vector<WatchedRank>& ranks) {
  const Nanoseconds now = clock_.monotonic();
  if (!watches_ || now < next_look_) return std::nullopt;
  next_look_ = now + kPulsePeriod;
  std::vector<RankSight> sights;
  for (const WatchedRank& rank : ranks) {
    sights.push_back(rank.pulse && rank.takes_part ? rank.pulse->look() : RankSight());
    sights.back().takes_part = rank.takes_part;
  }
  const auto hang = watch_.look(sights);
  if (!hang) return std::nullopt;

  Failure failure{.remedy = "recovery.hang sets how long a rank may take (docs/recovery.md)", .may_pass = true};
  std::vector<int> hanging = hang->ranks;
  if (hanging.empty()) {
    failure.cause = "the ranks wait for each other, and none has got on for " + format_duration(hang->still);
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
      if (!ranks[rank].takes_part) continue;
      hanging.push_back(static_cast<int>(rank));
      const std::string wait = wait_of(ranks[rank].pulse->page());
      failure.cause += "\n  " + place_of(hanging.back(), sights[rank]) + (wait.empty() ? "" : ", waits in " + wait);
    }
  } else {
    failure.rank = hanging.front();
    for (const int rank : hanging) {
      failure.cause += (failure.cause.empty() ? "" : "\n") + describe(rank, ranks, sights, *hang);
    }
  }
  write_flight_records(ranks);
  const std::string cause = failure.cause;
  for (const int rank : hanging) {
    const auto at = static_cast<std::size_t>(rank);
    const std::string place = write_stacks(rank, ranks[at], sights[at].stopped, cause);
    if (!place.empty()) failure.cause += "\n  rank " + std::to_string(rank) + " is at " + place;
    events_.write("rank_hangs", {{"rank", rank},
                                 {"step", sights[at].batch},
                                 {"phase", profile::name_of(sights[at].phase)},
                                 {"seconds", to_seconds(hang->still)},
                                 {"stopped", sights[at].stopped},
                                 {"place", place}});
  }
  failure.cause +=
      "\n  all threads: " + (folder_.logs() / ("hang-rank-" + std::to_string(hanging.front()) + ".txt")).string();
  for (const int rank : hanging) ranks[static_cast<std::size_t>(rank)].process->kill_group(SIGKILL);
  return failure;
}

}  // namespace dtrain::launcher
