// Scrapes the real agent as Prometheus does.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <map>

#include "dtrain/base/error.h"
#include "dtrain/base/file.h"
#include "support.h"

namespace dtrain::profile {
namespace {

// The body of the answer to GET /metrics; empty where there is none.
std::string scrape(const std::string& where) {
  const std::size_t colon = where.rfind(':');
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(std::stoi(where.substr(colon + 1))));
  ::inet_pton(AF_INET, where.substr(0, colon).c_str(), &address.sin_addr);
  const UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) return {};
  const std::string request = "GET /metrics HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n";
  EXPECT_EQ(::send(fd.get(), request.data(), request.size(), MSG_NOSIGNAL), std::ssize(request));
  std::string answer;
  char buffer[4096];
  for (ssize_t count = 0; (count = ::recv(fd.get(), buffer, sizeof buffer, 0)) > 0;) {
    answer.append(buffer, static_cast<std::size_t>(count));
  }
  EXPECT_THAT(answer, testing::StartsWith("HTTP/1.1 200 OK"));
  return answer.substr(std::min(answer.size(), answer.find("\r\n\r\n")));
}

// Lines of values, without the comments.
std::map<std::string, double> values_of(const std::string& text) {
  std::map<std::string, double> values;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const std::size_t space = line.rfind(' ');
    if (line.empty() || line[0] == '#' || space == std::string::npos) continue;
    values[line.substr(0, space)] = std::atof(line.c_str() + space);
  }
  return values;
}

std::string of_rank(const std::string& name, int rank, const std::string& more = "") {
  return name + "{agent=\"host1\",run=\"0007\",rank=\"" + std::to_string(rank) + "\"" + more + "}";
}

struct Scraped : testing::Test {
  void start(const std::string& address, int port) {
    auto options = run.agent_options({0, 1});
    options.sample_period = 20ms;
    options.prometheus = {address, port};
    agent.emplace(start_agent(options));
  }
  std::string where() { return read_dump(run.agent_dump()).front()["prometheus"].get<std::string>(); }
  // Once `name` has this value.
  bool shows(const std::string& name, double value) {
    return eventually([&] {
      last = values_of(scrape(where()));
      return last.count(name) != 0 && last.at(name) == value;
    });
  }
  TestRun run;
  std::optional<AgentProcess> agent;
  std::map<std::string, double> last;
};

TEST_F(Scraped, WhatRanksDidAndWhatTheSystemDoes) {
  start("127.0.0.1", 0);
  const SystemClock clock;
  {
    Recorder first(TestRun::rank_options(*agent, 0, 2), clock, clock.monotonic());
    Recorder second(TestRun::rank_options(*agent, 1, 2), clock, clock.monotonic());
    for (int batch = 1; batch <= 12; ++batch) {
      first.begin_step(batch);
      {
        const PhaseScope wait(first, Phase::kAllreduceWait);
        CollectiveRecord all_reduce;
        std::snprintf(all_reduce.operation, sizeof all_reduce.operation, "all_reduce");
        all_reduce.bytes = 1'000;
        all_reduce.started_ns = 5;
        all_reduce.ended_ns = 1'000'000'005;
        all_reduce.exposed_ns = 500'000'000;
        first.collective(all_reduce);
      }
      first.end_step({32, batch % 2 == 0, 3});
    }
    ASSERT_TRUE(shows(of_rank("dtrain_steps_total", 0), 12));
    EXPECT_EQ(last.at(of_rank("dtrain_steps_total", 1)), 0);
    EXPECT_EQ(last.at(of_rank("dtrain_samples_total", 0)), 12 * 32);
    EXPECT_EQ(last.at(of_rank("dtrain_optimizer_steps_total", 0)), 6);
    EXPECT_EQ(last.at(of_rank("dtrain_batch", 0)), 12);
    EXPECT_EQ(last.at(of_rank("dtrain_epoch", 0)), 3);
    EXPECT_EQ(last.at(of_rank("dtrain_collective_bytes_total", 0, ",operation=\"all_reduce\"")), 12'000);
    EXPECT_EQ(last.at(of_rank("dtrain_collective_exposed_seconds_total", 0, ",operation=\"all_reduce\"")), 6);
    EXPECT_GT(last.at(of_rank("dtrain_rank_resident_memory_bytes", 1)), 0);
    EXPECT_EQ(last.count("dtrain_free_memory_bytes{agent=\"host1\",run=\"0007\"}"), 1u);
    double of_phases = 0;
    for (const auto& [name, value] : last) {
      if (name.starts_with("dtrain_phase_seconds_total") && name.find("rank=\"0\"") != std::string::npos)
        of_phases += value;
    }
    EXPECT_NEAR(of_phases, last.at(of_rank("dtrain_step_seconds_total", 0)), 1e-9);
  }
  EXPECT_TRUE(finish_agent(*agent, kDeadline).success());
}

TEST_F(Scraped, ARankThatEndedStaysVisible) {
  start("127.0.0.1", 0);
  const SystemClock clock;
  {
    Recorder first(TestRun::rank_options(*agent, 0, 2), clock, clock.monotonic());
    first.begin_step(1);
    first.end_step({32, true, 0});
  }
  Recorder second(TestRun::rank_options(*agent, 1, 2), clock, clock.monotonic());
  ASSERT_TRUE(eventually([&] { return of_kind(read_dump(run.rank_dump(0)), "end").size() == 1; }));
  const std::size_t before = of_kind(read_dump(run.agent_dump()), "system").size();
  ASSERT_TRUE(eventually([&] { return of_kind(read_dump(run.agent_dump()), "system").size() > before + 1; }));
  EXPECT_TRUE(shows(of_rank("dtrain_steps_total", 0), 1));
}

TEST_F(Scraped, ItListensOnlyWhereItIsToldAndOnlyIfItIs) {
  start("127.0.0.1", 0);
  const std::string port = where().substr(where().rfind(':'));
  EXPECT_FALSE(scrape(where()).empty());
  EXPECT_TRUE(scrape("127.0.0.2" + port).empty()) << "another address of this machine";
  TestRun without;
  AgentProcess quiet = start_agent(without.agent_options({0}));
  EXPECT_FALSE(read_dump(without.agent_dump()).front().contains("prometheus"));
}

TEST_F(Scraped, APortThatIsTakenIsAnError) {
  start("127.0.0.1", 0);
  TestRun other;
  auto options = other.agent_options({0});
  options.prometheus = {"127.0.0.1", std::stoi(where().substr(where().rfind(':') + 1))};
  try {
    start_agent(options);
    FAIL() << "two agents on one port";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("cannot listen on " + where() + " for Prometheus"));
  }
}

}  // namespace
}  // namespace dtrain::profile
