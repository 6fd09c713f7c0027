// Scrapes the real monitor as Prometheus does.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <map>
#include <thread>

#include "dtrain/base/error.h"
#include "dtrain/base/file.h"
#include "support.h"

namespace dtrain::profile {
namespace {

// A connection to the endpoint; empty where nothing listens.
UniqueFd connect_to(const std::string& where) {
  const std::size_t colon = where.rfind(':');
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(std::stoi(where.substr(colon + 1))));
  ::inet_pton(AF_INET, where.substr(0, colon).c_str(), &address.sin_addr);
  UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const bool connected = ::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
  return connected ? std::move(fd) : UniqueFd();
}

void send_text(const UniqueFd& fd, const std::string& text) {
  EXPECT_EQ(::send(fd.get(), text.data(), text.size(), MSG_NOSIGNAL), std::ssize(text));
}

// What comes until the other side closes.
std::string rest_of(const UniqueFd& fd) {
  std::string answer;
  char buffer[4096];
  for (ssize_t count = 0; (count = ::recv(fd.get(), buffer, sizeof buffer, 0)) > 0;) {
    answer.append(buffer, static_cast<std::size_t>(count));
  }
  return answer;
}

void append(const std::filesystem::path& file, const std::string& text) {
  std::ofstream(file, std::ios::app) << text;
}

// The whole answer to a request.
std::string ask(const std::string& where, const std::string& request) {
  const UniqueFd fd = connect_to(where);
  if (!fd) return {};
  send_text(fd, request);
  return rest_of(fd);
}

// The body of the answer to GET /metrics; empty where there is none.
std::string scrape(const std::string& where) {
  const std::string answer = ask(where, "GET /metrics HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n");
  if (answer.empty()) return {};
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
    auto options = run.monitor_options({0, 1});
    options.sample_period = 20ms;
    options.prometheus = {address, port};
    monitor.emplace(start_monitor(options));
  }
  std::string where() { return read_dump(run.monitor_dump()).front()["prometheus"].get<std::string>(); }
  // Once `name` has this value.
  bool shows(const std::string& name, double value) {
    return eventually([&] {
      last = values_of(scrape(where()));
      return last.count(name) != 0 && last.at(name) == value;
    });
  }
  TestRun run;
  std::optional<MonitorProcess> monitor;
  std::map<std::string, double> last;
};

TEST_F(Scraped, WhatRanksDidAndWhatTheSystemDoes) {
  start("127.0.0.1", 0);
  const SystemClock clock;
  {
    Recorder first(TestRun::rank_options(*monitor, 0, 2), clock, clock.monotonic());
    Recorder second(TestRun::rank_options(*monitor, 1, 2), clock, clock.monotonic());
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
      first.end_step({{32}, batch % 2 == 0, 3});
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
  EXPECT_TRUE(finish_monitor(*monitor, kDeadline).success());
}

TEST_F(Scraped, WhatRestartsHaveCost) {
  const std::filesystem::path events = run.monitor_dump().parent_path().parent_path() / "events.jsonl";
  append(events, R"({"event":"attempt_failed","attempt":1}
{"event":"recovered","batches_again":7,"seconds":1.5,"lost_s":2}
)");
  start("127.0.0.1", 0);
  const auto of_run = [](const std::string& name) { return name + "{agent=\"host1\",run=\"0007\"}"; };
  ASSERT_TRUE(shows(of_run("dtrain_recoveries_total"), 1));
  EXPECT_EQ(last.at(of_run("dtrain_restarts_total")), 1);
  EXPECT_EQ(last.at(of_run("dtrain_batches_again_total")), 7);
  append(events, R"({"event":"recovered","batches_again":1,"seconds":0.25,)");
  ASSERT_TRUE(shows(of_run("dtrain_recoveries_total"), 1)) << "the line is not whole";
  append(events, "\"lost_s\":0.5}\n");
  ASSERT_TRUE(shows(of_run("dtrain_recoveries_total"), 2));
  EXPECT_EQ(last.at(of_run("dtrain_batches_again_total")), 8);
  EXPECT_EQ(last.at(of_run("dtrain_recovery_seconds_total")), 1.75);
  EXPECT_EQ(last.at(of_run("dtrain_last_recovery_seconds")), 0.25);
  EXPECT_EQ(last.at(of_run("dtrain_lost_seconds_total")), 2.5);
}

TEST_F(Scraped, ARankThatEndedStaysVisible) {
  start("127.0.0.1", 0);
  const SystemClock clock;
  {
    Recorder first(TestRun::rank_options(*monitor, 0, 2), clock, clock.monotonic());
    first.begin_step(1);
    first.end_step({{32}, true, 0});
  }
  Recorder second(TestRun::rank_options(*monitor, 1, 2), clock, clock.monotonic());
  ASSERT_TRUE(eventually([&] { return of_kind(read_dump(run.rank_dump(0)), "end").size() == 1; }));
  const std::size_t before = of_kind(read_dump(run.monitor_dump()), "system").size();
  ASSERT_TRUE(eventually([&] { return of_kind(read_dump(run.monitor_dump()), "system").size() > before + 1; }));
  EXPECT_TRUE(shows(of_rank("dtrain_steps_total", 0), 1));
}

TEST_F(Scraped, ItListensOnlyWhereItIsToldAndOnlyIfItIs) {
  start("127.0.0.1", 0);
  const std::string port = where().substr(where().rfind(':'));
  EXPECT_FALSE(scrape(where()).empty());
  EXPECT_TRUE(scrape("127.0.0.2" + port).empty()) << "another address of this machine";
  TestRun without;
  MonitorProcess quiet = start_monitor(without.monitor_options({0}));
  EXPECT_FALSE(read_dump(without.monitor_dump()).front().contains("prometheus"));
}

TEST_F(Scraped, WhileOthersSendHalfARequestOrNothing) {
  start("127.0.0.1", 0);
  ASSERT_TRUE(eventually([&] { return !of_kind(read_dump(run.monitor_dump()), "system").empty(); }));
  std::vector<UniqueFd> half;
  for (int i = 0; i < 300; ++i) {
    half.push_back(connect_to(where()));
    ASSERT_TRUE(half.back());
    if (i % 2 == 0) send_text(half.back(), "GET /metrics HTT");
    if (i % 50 == 0) {
      EXPECT_THAT(scrape(where()), testing::HasSubstr("dtrain_free_memory_bytes{"));
    }
  }
  EXPECT_THAT(scrape(where()), testing::HasSubstr("# TYPE dtrain_free_memory_bytes gauge\ndtrain_free_memory_bytes{"));
  for (const UniqueFd& fd : half) EXPECT_EQ(rest_of(fd), "") << "closed without an answer";
  const std::size_t before = of_kind(read_dump(run.monitor_dump()), "system").size();
  EXPECT_TRUE(eventually([&] { return of_kind(read_dump(run.monitor_dump()), "system").size() > before + 1; }));
}

TEST_F(Scraped, RequestsOfEachKindGetTheirAnswer) {
  start("127.0.0.1", 0);
  const UniqueFd slow = connect_to(where());
  for (const char* piece : {"GE", "T /met", "rics HTTP/1.0\r\n", "\r", "\n"}) {
    send_text(slow, piece);
    std::this_thread::sleep_for(30ms);
  }
  EXPECT_THAT(rest_of(slow), testing::StartsWith("HTTP/1.1 200 OK"));
  EXPECT_THAT(ask(where(), "HEAD /metrics HTTP/1.1\r\n\r\n"), testing::EndsWith("\r\n\r\n"));
  EXPECT_THAT(ask(where(), "GET /metrics?name=x HTTP/1.1\r\n\r\n"), testing::StartsWith("HTTP/1.1 200 OK"));
  EXPECT_THAT(ask(where(), "GET /../etc/passwd HTTP/1.1\r\n\r\n"), testing::StartsWith("HTTP/1.1 404 Not Found"));
  EXPECT_THAT(ask(where(), "POST /metrics HTTP/1.1\r\n\r\n"), testing::StartsWith("HTTP/1.1 405 Method Not Allowed"));
  EXPECT_THAT(ask(where(), "\r\n\r\n"), testing::StartsWith("HTTP/1.1 405 "));
  const std::string line(8192, 'x');
  EXPECT_THAT(ask(where(), "GET /" + line), testing::StartsWith("HTTP/1.1 431 "));
}

TEST_F(Scraped, APortThatIsTakenIsAnError) {
  start("127.0.0.1", 0);
  TestRun other;
  auto options = other.monitor_options({0});
  options.prometheus = {"127.0.0.1", std::stoi(where().substr(where().rfind(':') + 1))};
  try {
    start_monitor(options);
    FAIL() << "two agents on one port";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(),
                testing::HasSubstr("cannot listen on " + where() + " for Prometheus: Address already in use"));
  }
}

}  // namespace
}  // namespace dtrain::profile
