// Many ranks on one host, as an ordinary user with few open files, and what memory of the shm backend costs in
// descriptors.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include "dtrain/base/error.h"
#include "harness/run_processes.h"
#include "harness/run_ranks.h"

namespace dtrain::comm {
namespace {

using test::TestWorld;
using testing::HasSubstr;

constexpr uid_t kNobody = 65534;
constexpr rlim_t kOpenFiles = 1024;
constexpr std::size_t kMemoryNeeded = 1536;  // MiB
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int kManyRanks = 48;  // each takes several times the memory
#else
constexpr int kManyRanks = 128;
#endif

std::size_t open_descriptors() {
  using Folder = std::filesystem::directory_iterator;
  return static_cast<std::size_t>(std::distance(Folder("/proc/self/fd"), Folder()));
}

std::size_t available_mib() {
  std::ifstream meminfo("/proc/meminfo");
  std::string name;
  std::size_t kib = 0;
  for (std::string rest; meminfo >> name >> kib && std::getline(meminfo, rest);) {
    if (name == "MemAvailable:") return kib / 1024;
  }
  return 0;
}

void must(bool condition, const std::string& what) {
  if (!condition) throw CommError(what);
}

// A training step's communication: gradients in a Buffer, other memory, and a few bytes.
void take_a_step(Communicator& comm) {
  constexpr std::size_t kCount = 10'000;
  const int world = comm.world_size();
  const int total = world * (world - 1) / 2;
  const auto sum = static_cast<float>(total);
  const auto all_are = [](std::span<const float> data, float value) {
    return std::all_of(data.begin(), data.end(), [value](float x) { return x == value; });
  };
  const auto buffer = comm.allocate(kCount * sizeof(float));
  const auto common = comm.allocate_common(4096);
  const std::span gradients(reinterpret_cast<float*>(buffer->bytes().data()), kCount);
  std::fill(gradients.begin(), gradients.end(), static_cast<float>(comm.rank()));
  comm.all_reduce(gradients.data(), kCount, DataType::kFloat32).wait();
  must(all_are(gradients, sum), "the sum in a Buffer is wrong");
  std::vector<float> plain(kCount, static_cast<float>(comm.rank()));
  comm.all_reduce(plain.data(), kCount, DataType::kFloat32).wait();
  must(all_are(plain, sum), "the staged sum is wrong");
  std::int32_t here = 1;
  comm.all_reduce(&here, 1, DataType::kInt32).wait();
  must(here == world, std::to_string(here) + " ranks are here");
  if (comm.rank() == world - 1) common->bytes()[17] = std::byte{42};
  comm.barrier().wait();
  must(common->bytes()[17] == std::byte{42}, "the common memory is not common");
}

// As an ordinary user; what went wrong, empty: nothing.
std::string run_many_ranks() {
  if (::geteuid() == 0 &&
      (::setresgid(kNobody, kNobody, kNobody) != 0 || ::setresuid(kNobody, kNobody, kNobody) != 0)) {
    return "cannot become nobody";
  }
  const rlimit few{kOpenFiles, kOpenFiles};
  if (::setrlimit(RLIMIT_NOFILE, &few) != 0) return "cannot lower the limit of open files";
  TestWorld world(kManyRanks);
  world.timeout = std::chrono::seconds(90);
  world.heartbeat = std::chrono::seconds(1);
  const auto outcomes = test::run_processes(world, [](ControlPlane&, Communicator& comm) { take_a_step(comm); });
  std::string wrong;
  for (std::size_t rank = 0; rank < outcomes.size(); ++rank) {
    const auto& outcome = outcomes[rank];
    if (outcome.status.success()) continue;
    wrong += "rank " + std::to_string(rank) + ": " + outcome.status.describe() + " " + outcome.error + "\n";
    if (wrong.size() > 2000) break;
  }
  return wrong;
}

TEST(ManyRanks, AnOrdinaryUserWithAThousandOpenFilesStartsThemOnOneHost) {
  rlimit limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
  if (limit.rlim_max < kOpenFiles) GTEST_SKIP() << "fewer than 1024 open files are allowed here";
  if (available_mib() < kMemoryNeeded)
    GTEST_SKIP() << kManyRanks << " processes need " << kMemoryNeeded << " MiB of memory";
  int said[2];
  ASSERT_EQ(::pipe(said), 0);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    ::close(said[0]);
    std::string wrong;
    try {
      wrong = run_many_ranks();
    } catch (const std::exception& error) {
      wrong = error.what();
    }
    const bool told = ::write(said[1], wrong.data(), wrong.size()) == static_cast<ssize_t>(wrong.size());
    ::_exit(wrong.empty() && told ? 0 : 1);
  }
  ::close(said[1]);
  std::string wrong;
  char part[4096];
  for (ssize_t got; (got = ::read(said[0], part, sizeof part)) > 0;) wrong.append(part, static_cast<std::size_t>(got));
  ::close(said[0]);
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0) << wrong;
}

TEST(ShmDescriptors, ABufferKeepsNone) {
  for (const int ranks : {1, 2, 3}) {
    const auto outcomes = test::run_processes(TestWorld(ranks), [](ControlPlane&, Communicator& comm) {
      const std::size_t before = open_descriptors();
      std::vector<std::unique_ptr<Buffer>> buffers;
      for (int i = 0; i < 20; ++i) {
        buffers.push_back(comm.allocate(5000));
        buffers.push_back(comm.allocate_common(5000));
      }
      must(open_descriptors() == before, std::to_string(open_descriptors()) + " descriptors are open where " +
                                             std::to_string(before) + " were before 40 allocations");
    });
    for (const auto& outcome : outcomes) EXPECT_TRUE(outcome.status.success()) << outcome.error;
  }
}

// Rank 2 takes part in the meeting before, then never connects.
TEST(ShmSetUp, ATimeOutNamesTheRankThatIsMissing) {
  TestWorld world(3);
  world.timeout = std::chrono::milliseconds(500);
  std::vector<std::string> errors(3);
  try {
    test::run_control_ranks(world, [&](ControlPlane& control) {
      const int rank = control.world().rank;
      if (rank == 2) {
        control.gather("comm/shm", R"({"host": "test-host", "socket": ""})");
        while (!control.failure()) std::this_thread::sleep_for(std::chrono::milliseconds(2));
        return;
      }
      (void)make_shm_communicator(control, world.communicator_options());
    });
    FAIL() << "it was set up";
  } catch (const CommError& error) {
    EXPECT_THAT(error.what(), testing::AllOf(HasSubstr("could not be set up within 500"),
                                             HasSubstr("missing: rank 2 ("), testing::Not(HasSubstr("rank 1"))));
  }
}

}  // namespace
}  // namespace dtrain::comm
