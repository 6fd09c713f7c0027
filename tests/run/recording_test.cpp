// What a run records beside its steps, through `dtrain launch` and by hand.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cmath>

#include "run_harness.h"

namespace dtrain {
namespace {

using testing::HasSubstr;

fs::path dump_of(const TestRun& run, int rank) {
  return run.run_dir() / "profile" / ("rank-000" + std::to_string(rank) + ".jsonl");
}

TEST(Recording, ClocksOfOneHostAreAligned) {
  TestRun run;
  Command launch = run.launch();
  EXPECT_EQ(launch.wait().describe(), "exit status 0") << launch.err();
  for (int rank = 0; rank < 2; ++rank) {
    const auto lines = read_lines(dump_of(run, rank));
    const auto clocks = of_kind(lines, "clock");
    ASSERT_EQ(clocks.size(), 2u) << "at the start and at the end";
    for (const Json& clock : clocks) {
      EXPECT_LE(std::abs(clock["offset_ns"].get<std::int64_t>()), clock["error_ns"].get<std::int64_t>());
      EXPECT_EQ(clock["round_trips"], rank == 0 ? 0 : 16);
    }
    EXPECT_LT(clocks[0]["time_ns"], clocks[1]["time_ns"]);
    EXPECT_EQ(lines.front()["rank_0_clock"]["offset_ns"], clocks[0]["offset_ns"]);
    EXPECT_EQ(lines.front()["rank_0_clock"]["error_ns"], clocks[0]["error_ns"]);
    EXPECT_FALSE(lines.front()["cpus"].empty());
    EXPECT_GE(of_kind(lines, "memory").size(), 1u);
  }
}

// Rank 1 lives in a time namespace, whose monotonic clock is an hour ahead: it reads the machine's.
TEST(Recording, AClockOfATimeNamespaceIsTheMachines) {
  if (std::system("unshare --time --fork --monotonic 3600 true 2>/dev/null") != 0) {
    GTEST_SKIP() << "this machine makes no time namespaces here";
  }
  TestRun run;
  std::vector<Command> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    fs::create_directories(run.folder() / std::to_string(rank));
    std::vector<std::string> command{rank_program(), run.experiment(), "--run-dir", run.run_dir()};
    if (rank == 1) command.insert(command.begin(), {"unshare", "--time", "--fork", "--monotonic", "3600"});
    ranks.emplace_back(run.folder() / std::to_string(rank), command,
                       std::map<std::string, std::string>{{"RANK", std::to_string(rank)},
                                                          {"WORLD_SIZE", "2"},
                                                          {"LOCAL_RANK", std::to_string(rank)},
                                                          {"LOCAL_WORLD_SIZE", "2"},
                                                          {"MASTER_ADDR", "127.0.0.1"},
                                                          {"MASTER_PORT", "1"},
                                                          {"TORCHELASTIC_RUN_ID", run.folder().filename()},
                                                          {"XDG_RUNTIME_DIR", run.folder()}});
  }
  for (Command& rank : ranks) EXPECT_EQ(rank.wait().describe(), "exit status 0") << rank.err();
  const auto clocks = of_kind(read_lines(dump_of(run, 1)), "clock");
  EXPECT_EQ(clocks.size(), 2u);
  for (const Json& clock : clocks) {
    EXPECT_LE(std::abs(clock["offset_ns"].get<std::int64_t>()), clock["error_ns"].get<std::int64_t>()) << clock;
  }
}

std::string scrape(const std::string& port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(std::stoi(port)));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) return {};
  const std::string request = "GET /metrics HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n";
  if (::send(fd.get(), request.data(), request.size(), MSG_NOSIGNAL) != std::ssize(request)) return {};
  std::string answer;
  char buffer[4096];
  for (ssize_t count = 0; (count = ::recv(fd.get(), buffer, sizeof buffer, 0)) > 0;) {
    answer.append(buffer, static_cast<std::size_t>(count));
  }
  return answer;
}

TEST(Recording, PrometheusScrapesTheRun) {
  TestRun run({.batches = 100'000, .more = "profiling: {prometheus: {port: 0}}\n"});
  Command launch = run.launch();
  ASSERT_TRUE(run.reached(1, 5)) << launch.err();
  fs::path dump;
  for (const auto& entry : fs::directory_iterator(run.run_dir() / "profile")) {
    if (entry.path().filename().string().starts_with("agent-")) dump = entry.path();
  }
  const std::string where = read_lines(dump).at(0).at("prometheus");
  ASSERT_THAT(where, testing::StartsWith("127.0.0.1:"));
  std::string text;
  EXPECT_TRUE(eventually([&] {
    text = scrape(where.substr(where.find(':') + 1));
    return testing::Value(text, testing::ContainsRegex("dtrain_batch\\{[^}]*rank=\"1\"\\} [1-9]"));
  })) << text;
  EXPECT_THAT(text, HasSubstr("# TYPE dtrain_steps_total counter"));
  EXPECT_THAT(text, HasSubstr("run=\"run\""));
  EXPECT_THAT(text, HasSubstr("phase=\"allreduce_wait\""));
  launch.kill(SIGTERM);
  EXPECT_EQ(launch.wait().code, 130);
  run.expect_nothing_left();
}

TEST(Recording, APortThatIsTakenEndsTheLaunchWithTheReason) {
  const UniqueFd taken(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  ASSERT_EQ(::bind(taken.get(), reinterpret_cast<const sockaddr*>(&address), size), 0);
  ASSERT_EQ(::listen(taken.get(), 1), 0);
  ASSERT_EQ(::getsockname(taken.get(), reinterpret_cast<sockaddr*>(&address), &size), 0);
  const std::string port = std::to_string(ntohs(address.sin_port));
  TestRun run({.more = "profiling: {prometheus: {port: " + port + "}}\n"});
  Command launch = run.launch();
  EXPECT_NE(launch.wait().code, 0);
  EXPECT_THAT(launch.err(), HasSubstr("cannot listen on 127.0.0.1:" + port + " for Prometheus"));
}

}  // namespace
}  // namespace dtrain
