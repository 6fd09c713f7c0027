// A dump while a window takes the place of its steps: the process that writes is killed, or fails, at each of its
// writes in turn (by ptrace), and a reader must find every step once.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/user.h>

#include <cerrno>
#include <csignal>
#include <map>

#include "dtrain/analysis/dump_reader.h"
#include "monitor/dump.h"
#include "support.h"

namespace dtrain::profile {
namespace {

#if defined(__x86_64__)

constexpr std::int64_t kInFull = 100, kSteps = 430, kOfAFlush = 20;

enum class Fate { kKilledBefore, kKilledInside, kFails };

struct Shared {
  std::int64_t flushed;  // the last batch that flush() has returned for
  std::int64_t lost;     // lines, by the writer's own account
};

// Lives in the traced process.
[[noreturn]] void write_dump(const fs::path& path, Shared& shared) {
  ManualClock clock;
  DumpWriter writer(path, clock);
  BoundedDump dump(writer, kInFull);
  writer.write("{\"record\":\"header\",\"schema\":1,\"rank\":0,\"world_size\":1}\n");
  std::int64_t now = 0;
  for (std::int64_t batch = 1; batch <= kSteps; ++batch) {
    Record record{};
    record.kind = RecordKind::kLoader;
    record.batch = batch;
    record.loader = {now, 1, 4, 2'000, 0};
    dump.add(record);
    record = {};
    record.kind = RecordKind::kStep;
    record.batch = batch;
    const std::int64_t wall = batch % 90 == 0 ? 90'000'000 : 5'000'000 + batch % 7 * 10'000;  // with outliers
    record.step = {{{32}, 1, 0}, now, wall, {}};
    record.step.phases[0] = wall;
    dump.add(record);
    now += wall;
    if (batch % kOfAFlush != 0) continue;
    dump.flush();
    clock.now += 1s;  // what failed is tried again
    shared.flushed = batch;
    shared.lost = static_cast<std::int64_t>(writer.lost());
  }
  ::_exit(writer.lost() > 0 ? 2 : 0);
}

bool writes(const user_regs_struct& registers) {
  switch (registers.orig_rax) {
    case SYS_write:
    case SYS_pwrite64:
    case SYS_ftruncate:
    case SYS_truncate:
      return true;
    default:
      return false;
  }
}

// Runs write_dump() and lets its n-th write, from 1, meet its fate. False: there were fewer.
bool run_traced(const fs::path& path, Shared& shared, int n, Fate fate) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::ptrace(PTRACE_TRACEME, 0, nullptr, nullptr);
    ::raise(SIGSTOP);
    write_dump(path, shared);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  if (!WIFSTOPPED(status)) return false;
  ::ptrace(PTRACE_SETOPTIONS, child, nullptr, PTRACE_O_TRACESYSGOOD | PTRACE_O_EXITKILL);
  bool inside = false, reached = false, fail_now = false;
  for (int count = 0;;) {
    ::ptrace(PTRACE_SYSCALL, child, nullptr, nullptr);
    ::waitpid(child, &status, 0);
    if (!WIFSTOPPED(status)) return reached;
    if (WSTOPSIG(status) != (SIGTRAP | 0x80)) continue;
    inside = !inside;
    user_regs_struct registers{};
    ::ptrace(PTRACE_GETREGS, child, nullptr, &registers);
    if (!inside) {
      if (reached && fate == Fate::kKilledInside) break;
      if (!std::exchange(fail_now, false)) continue;
      registers.rax = static_cast<unsigned long long>(-ENOSPC);
      ::ptrace(PTRACE_SETREGS, child, nullptr, &registers);
      continue;
    }
    if (!writes(registers) || ++count != n) continue;
    reached = true;
    if (fate == Fate::kKilledBefore) break;
    if (fate == Fate::kKilledInside) {
      if (registers.orig_rax == SYS_write || registers.orig_rax == SYS_pwrite64) registers.rdx /= 2;
    } else {
      fail_now = true;
      registers.orig_rax = static_cast<unsigned long long>(-1);
    }
    ::ptrace(PTRACE_SETREGS, child, nullptr, &registers);
  }
  ::kill(child, SIGKILL);
  ::waitpid(child, &status, 0);
  return reached;
}

// Which steps a dump holds, and how often.
struct StepsOfADump final : analysis::DumpHandler {
  void restart() override { *this = {}; }
  void step(const analysis::StepLine& line) override { ++lines[line.batch]; }
  void loader(const analysis::LoaderLine& line) override { ++loaders[line.batch]; }
  void window(const analysis::WindowLine& line, const analysis::WindowSketches&) override { windows.push_back(line); }
  void lost(std::int64_t count, const std::string&) override { lost_lines += count; }

  // How often each step is held; a window stands for those of its steps that have no line.
  std::map<std::int64_t, int> held() const {
    std::map<std::int64_t, int> result = lines;
    for (const analysis::WindowLine& window : windows) {
      std::int64_t folded = 0;
      for (std::int64_t batch = window.first_batch; batch <= window.last_batch; ++batch) {
        if (lines.contains(batch)) continue;
        ++folded;
        ++result[batch];
      }
      EXPECT_EQ(folded, window.steps) << "window from " << window.first_batch;
    }
    return result;
  }

  std::map<std::int64_t, int> lines, loaders;
  std::vector<analysis::WindowLine> windows;
  std::int64_t lost_lines = 0;
};

class Replace : public testing::TestWithParam<Fate> {};

TEST_P(Replace, LosesAndDoublesNoStepWhicheverWriteIsTheLast) {
  auto* const shared =
      static_cast<Shared*>(::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  ASSERT_NE(shared, MAP_FAILED);
  int tried = 0, with_windows = 0;
  for (bool reached = true; reached;) {
    TemporaryFolder folder;
    const fs::path path = folder.path() / "rank-0000.jsonl";
    *shared = {};
    reached = run_traced(path, *shared, ++tried, GetParam());
    SCOPED_TRACE("write " + std::to_string(tried));
    StepsOfADump dump;
    const analysis::ReadResult read = analysis::read_dump(path, dump);
    EXPECT_EQ(read.unreadable, 0);
    with_windows += dump.windows.empty() ? 0 : 1;
    const auto held = dump.held();
    std::int64_t missing = 0;
    for (std::int64_t batch = 1; batch <= shared->flushed; ++batch) {
      const auto found = held.find(batch);
      missing += found == held.end() ? 1 : 0;
      if (found != held.end()) {
        EXPECT_EQ(found->second, 1) << "batch " << batch;
      }
    }
    for (const auto& [batch, count] : dump.loaders) EXPECT_EQ(count, 1) << "loader of batch " << batch;
    EXPECT_LE(missing, shared->lost) << "what is missing is counted";
    EXPECT_LE(dump.lost_lines, shared->lost);
    if (GetParam() != Fate::kFails) {
      EXPECT_EQ(missing, 0);
    }
    if (!reached) {
      EXPECT_EQ(shared->flushed, kSteps / kOfAFlush * kOfAFlush);
      EXPECT_EQ(dump.windows.size(), 2u);
    }
  }
  ::munmap(shared, sizeof(Shared));
  EXPECT_GT(tried, 20);
  EXPECT_GT(with_windows, 10);
}

INSTANTIATE_TEST_SUITE_P(AtEachWrite, Replace, testing::Values(Fate::kKilledBefore, Fate::kKilledInside, Fate::kFails),
                         [](const auto& info) {
                           return info.param == Fate::kKilledBefore   ? "KilledBefore"
                                  : info.param == Fate::kKilledInside ? "KilledInside"
                                                                      : "Fails";
                         });

#endif

}  // namespace
}  // namespace dtrain::profile
