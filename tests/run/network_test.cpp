// Which networks hosts have in common, which is taken, and what a measurement lets in.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>

#include "dtrain/base/error.h"
#include "dtrain/base/file.h"
#include "dtrain/base/subprocess.h"
#include "network/link_meter.h"
#include "network/network_choice.h"

namespace dtrain::launcher {
namespace {

using host::InterfaceAddress;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using namespace std::chrono_literals;

const InterfaceAddress kLoopback{"lo", "127.0.0.1", true, 8};
const InterfaceAddress kBridge{"docker0", "172.17.0.1", false, 16};  // the same on every host

HostInterfaces host_with(const std::string& name, std::vector<InterfaceAddress> addresses) {
  addresses.insert(addresses.begin(), {kLoopback, kBridge});
  return {.host = name, .addresses = std::move(addresses)};
}

std::vector<std::string> described(const std::vector<CommonNetwork>& networks) {
  std::vector<std::string> result;
  for (const CommonNetwork& one : networks) result.push_back(one.describe() + " = " + one.value());
  return result;
}

std::string refusal(const std::vector<HostInterfaces>& hosts, const std::string& wanted) {
  try {
    return "no error, but " + wanted_networks(hosts, wanted, "c.yaml: ").front().describe();
  } catch (const ConfigError& error) {
    return std::string(error.what()) + " / " + error.remedy();
  }
}

TEST(CommonNetworks, ByAddressUnderAnyName) {
  const std::vector<HostInterfaces> hosts{
      host_with("a", {{"eth0", "10.1.0.1", false, 16}, {"ib0", "10.2.0.1", false, 24}, {"x", "10.3.0.1", false, 24}}),
      host_with("b", {{"eth0", "10.1.7.2", false, 16}, {"ib1", "10.2.0.2", false, 24}, {"x", "10.4.0.1", false, 32}}),
      host_with("c", {{"ib0", "10.2.0.3", false, 24}, {"eth0", "10.1.9.3", false, 16}})};
  EXPECT_THAT(described(common_networks(hosts)),
              ElementsAre("eth0 (10.1.0.0/16) = eth0", "ib0|ib1 (10.2.0.0/24) = 10.2.0.0/24"));
  EXPECT_EQ(common_networks(hosts)[1].ends[1], (NetworkEnd{"b", "ib1", "10.2.0.2", std::nullopt}));
  EXPECT_THAT(common_networks({}), testing::IsEmpty());
}

TEST(CommonNetworks, TheShorterPrefixWhereHostsDiffer) {
  const std::vector<HostInterfaces> narrow{host_with("a", {{"e", "10.1.2.1", false, 24}}),
                                           host_with("b", {{"e", "10.1.2.9", false, 16}})};
  EXPECT_THAT(described(common_networks(narrow)), ElementsAre("e (10.1.0.0/16) = e"));
}

TEST(CommonNetworks, IPv6AddsNothingToTheSameInterfaces) {
  const std::vector<HostInterfaces> both{
      host_with("a", {{"e", "fe80::1", false, 64}, {"e", "fd00::1", false, 64}, {"e", "10.1.0.1", false, 24}}),
      host_with("b", {{"e", "fe80::2", false, 64}, {"e", "fd00::2", false, 64}, {"e", "10.1.0.2", false, 24}})};
  EXPECT_THAT(described(common_networks(both)), ElementsAre("e (10.1.0.0/24) = e"));
  const std::vector<HostInterfaces> six{host_with("a", {{"e", "fe80::1", false, 64}, {"e", "fd00::1", false, 64}}),
                                        host_with("b", {{"e", "fe80::2", false, 64}, {"f", "fd00::2", false, 64}})};
  EXPECT_THAT(described(common_networks(six)), ElementsAre("e|f (fd00::/64) = fd00::/64"));
}

TEST(CommonNetworks, ByNameWhereRoutesJoinThem) {
  const std::vector<HostInterfaces> clouds{host_with("a", {{"ens5", "10.0.1.7", false, 24}}),
                                           host_with("b", {{"ens5", "10.0.2.7", false, 24}})};
  EXPECT_THAT(described(common_networks(clouds)), ElementsAre("ens5 (routed) = ens5"));
  const std::vector<HostInterfaces> points{host_with("a", {{"wg0", "10.9.0.1", false, 32}}),
                                           host_with("b", {{"wg0", "10.9.0.2", false, 32}})};
  EXPECT_THAT(described(common_networks(points)), ElementsAre("wg0 (routed) = wg0"));
}

TEST(WantedNetworks, AreThereOnEveryHost) {
  const std::vector<HostInterfaces> hosts{
      host_with("a", {{"eth0", "10.1.0.1", false, 16}, {"ib0", "10.2.0.1", false, 24}}),
      host_with("b", {{"eth0", "10.1.7.2", false, 16}, {"ib1", "10.2.0.2", false, 24}})};
  EXPECT_THAT(described(wanted_networks(hosts, "auto", "")), testing::SizeIs(2));
  EXPECT_THAT(described(wanted_networks(hosts, "eth0", "")), ElementsAre("eth0 (10.1.0.0/16) = eth0"));
  EXPECT_THAT(described(wanted_networks(hosts, "10.2.0.9/24", "")), ElementsAre("ib0|ib1 (10.2.0.0/24) = 10.2.0.0/24"));
  EXPECT_THAT(refusal(hosts, "ib0"), AllOf(HasSubstr("c.yaml: host b has no interface 'ib0'"),
                                           HasSubstr("b has docker0 (172.17.0.1/16), eth0 (")));
  EXPECT_THAT(refusal(hosts, "10.1.0.0/24"), HasSubstr("c.yaml: no address of host b is in 10.1.0.0/24"));
  EXPECT_THAT(refusal(hosts, "10.1.0.0/77"), HasSubstr("10.1.0.0/77 is not a network"));
  for (const char* bridge : {"docker0", "172.17.0.0/16"})
    EXPECT_THAT(refusal(hosts, bridge),
                HasSubstr("leads from no host to another: a and b both have the address 172.17.0.1"));
}

TEST(WantedNetworks, NothingInCommonSaysWhatThereIs) {
  EXPECT_THAT(
      refusal({host_with("a", {{"e", "10.1.0.1", false, 16}}), host_with("b", {{"f", "10.2.0.1", false, 16}})}, "auto"),
      AllOf(HasSubstr("the hosts have no network in common"),
            HasSubstr("a has docker0 (172.17.0.1/16), e (10.1.0.1/16)"),
            HasSubstr("; b has docker0 (172.17.0.1/16), f (10.2.0.1/16)")));
}

TEST(WantedNetworks, InterfacesSurviveTheWayThroughJson) {
  HostInterfaces host = host_with("a", {{"e", "fd00::1", false, 64}});
  host.speeds["e"] = 25'000'000'000;
  const HostInterfaces back = interfaces_of(Json::parse(to_line(to_json(host))));
  EXPECT_EQ(to_json(back), to_json(host));
  EXPECT_EQ(back.speeds, host.speeds);
}

CommonNetwork network(const std::string& name, double megabits, Nanoseconds round_trip, const std::string& problem = {},
                      const std::string& cidr = "10.0.0.0/8") {
  CommonNetwork result{.network = cidr, .ends = {{"a", name, "10.0.0.1", {}}, {"b", name, "10.0.0.2", {}}}};
  if (problem.empty()) result.figures = NetworkFigures{megabits * 1e6, round_trip};
  result.problem = problem;
  return result;
}

std::vector<std::string> sorted(std::vector<CommonNetwork> networks) {
  sort_by_speed(networks);
  std::vector<std::string> names;
  for (const CommonNetwork& one : networks) names.push_back(one.value());
  return names;
}

TEST(SortBySpeed, BandwidthThenRoundTripThenIPv4) {
  EXPECT_THAT(sorted({network("slow", 95, 20us), network("fast", 950, 200us)}), ElementsAre("fast", "slow"));
  EXPECT_THAT(sorted({network("a", 9'400, 90us), network("b", 9'000, 30us), network("c", 8'000, 1us)}),
              ElementsAre("b", "a", "c"))
      << "within a tenth the round trip decides";
  EXPECT_THAT(sorted({network("six", 950, 100us, "", "fd00::/64"), network("four", 940, 105us)}),
              ElementsAre("four", "six"));
  EXPECT_THAT(sorted({network("cut", 0, 0us, "no answer"), network("slow", 1, 9ms)}), ElementsAre("slow", "cut"));
  EXPECT_THAT(sorted({network("first", 950, 100us), network("second", 950, 100us)}), ElementsAre("first", "second"));
}

TEST(NetworkChoices, AreSaidWithTheirFigures) {
  NetworkChoice choice{.networks = {network("fast0", 957, 80us), network("slow0", 95.5, 90us, "", "10.2.0.0/16"),
                                    network("cut0", 0, 0us, "a firewall", "10.3.0.0/16")},
                       .reason = "the fastest of 2"};
  EXPECT_EQ(render_network(choice),
            "network     fast0 (10.0.0.0/8): 957 Mbit/s, round trip 80.0 us; the fastest of 2\n"
            "      or    slow0 (10.2.0.0/16): 95.5 Mbit/s, round trip 90.0 us\n"
            "      or    cut0 (10.3.0.0/16): a firewall\n");
  const Json json = to_json(choice);
  EXPECT_EQ(json.at("interface"), "fast0");
  EXPECT_EQ(json.at("networks")[1].at("bits_per_second"), 95.5e6);
  EXPECT_EQ(json.at("networks")[1].at("round_trip_us"), 90);
  EXPECT_EQ(json.at("networks")[2].at("bits_per_second"), nullptr);
  EXPECT_EQ(json.at("networks")[2].at("problem"), "a firewall");
  EXPECT_THAT(several_networks_warning(choice), HasSubstr("fast0 (10.0.0.0/8), slow0 (10.2.0.0/16); taken: fast0"));
  choice.networks.erase(choice.networks.begin() + 1);
  EXPECT_EQ(several_networks_warning(choice), "") << "the other one cannot be used";
  EXPECT_EQ(render_network({}), "");
}

// The other end of a connection to a measuring server.
LinkStream stranger(int port) {
  return LinkStream::connect({"127.0.0.1", "127.0.0.1", port}, std::chrono::steady_clock::now() + 20s);
}

const LinkKey kLinkKey{"a secret for tests", 3};

TEST(LinkMeter, MeasuresAConnection) {
  const LinkServer server("127.0.0.1", kLinkKey);
  const LinkTarget target{"127.0.0.1", "127.0.0.1", server.port()};
  const Nanoseconds trip = measure_round_trip(target, kLinkKey);
  EXPECT_GT(trip, 0ns);
  EXPECT_LT(trip, 20s);
  EXPECT_GT(measure_bandwidth(target, kLinkKey, 50ms), 1e6);
  EXPECT_GT(measure_bandwidth(target, kLinkKey, 50ms), 1e6) << "as often as one likes";
}

// Why no measurement with this key was possible.
std::string refusal(const LinkServer& server, const LinkKey& key) {
  try {
    measure_round_trip({"127.0.0.1", "127.0.0.1", server.port()}, key);
  } catch (const CommError& error) {
    return error.what();
  }
  return "it was";
}

TEST(LinkMeter, LetsNobodyInWithoutTheSecret) {
  const LinkServer server("127.0.0.1", kLinkKey);
  EXPECT_THAT(refusal(server, {"a guess for tests", 3}), HasSubstr("refused: wrong secret"));
  EXPECT_THAT(refusal(server, {kLinkKey.secret, 1}), HasSubstr("it wants 1, this is 3")) << "another host is meant";
  { LinkStream hang_up = stranger(server.port()); }
  LinkStream noise = stranger(server.port());
  noise.write(std::string(4096, 'x'));
  EXPECT_THROW(noise.read(4096), CommError) << "after the challenge it closes";
  LinkStream silent = stranger(server.port());  // the next one waits until this has been given up
  EXPECT_EQ(refusal(server, kLinkKey), "it was");
}

TEST(LinkMeter, FindsOutThatTheServerIsNotTheRightOne) {
  const LinkServer server("127.0.0.1", {"another secret for tests", 3});
  EXPECT_THROW(measure_bandwidth({"127.0.0.1", "127.0.0.1", server.port()}, kLinkKey, 10ms), CommError);
  EXPECT_THROW(measure_bandwidth({"127.0.0.1", "127.0.0.1", 1}, kLinkKey, 10ms), CommError) << "nobody listens";
  EXPECT_THROW(LinkServer("203.0.113.7", kLinkKey), SystemError) << "not an address of this host";
}

std::string greeting_of(const std::vector<std::string>& command) {
  ProbeSession session("far", command);
  try {
    session.greet(std::chrono::steady_clock::now() + 10s);
    return "hello from " + session.name();
  } catch (const ConfigError& error) {
    return std::string(error.what()) + " / " + error.remedy();
  }
}

std::string greeting_of(const std::string& script) {
  return greeting_of(std::vector<std::string>{"/bin/sh", "-c", script});
}

TEST(ProbeSessions, SayWhatIsWrongWithAHost) {
  EXPECT_THAT(
      greeting_of("echo 'Permission denied (publickey).' >&2; exit 255"),
      HasSubstr("host far cannot be reached by /bin/sh: Permission denied (publickey). / `/bin/sh far true` must"));
  EXPECT_THAT(greeting_of("exec /nowhere/dtrain"), HasSubstr("host far has no program "));
  EXPECT_THAT(greeting_of("echo '{\"dtrain\":\"0.0.7\",\"protocol\":1}'; sleep 1"),
              HasSubstr("host far has dtrain 0.0.7, and this host "));
  EXPECT_THAT(greeting_of("echo \"there is no command 'host-probe'\" >&2; exit 2"),
              AllOf(HasSubstr("ended with exit status 2: there is no command"), HasSubstr("is it another version?")));
  EXPECT_THAT(greeting_of("yes noise"), HasSubstr("did not answer in time"));
}

TEST(ProbeSessions, TalkToAHostThatGreetsFirst) {
  const std::string dtrain = std::string(DTRAIN_BINARY_DIR) + "/bin/dtrain";
  ProbeSession session("far", {"/bin/sh", "-c", "echo Welcome!; exec " + dtrain + " host-probe"});
  const auto deadline = std::chrono::steady_clock::now() + 30s;
  session.greet(deadline);
  EXPECT_NE(session.key(), "");
  session.send({{"do", "interfaces"}});
  EXPECT_THAT(session.receive(deadline).at("addresses").dump(), HasSubstr("127.0.0.1"));
  session.send({{"do", "nonsense"}});
  EXPECT_THAT(session.receive(deadline).at("error").get<std::string>(), HasSubstr("unknown request 'nonsense'"));
  session.send({{"do", "serve"}});
  EXPECT_TRUE(session.receive(deadline).contains("error"));
  session.send({{"do", "exists"}, {"path", "/"}});
  EXPECT_EQ(session.receive(deadline).at("exists"), true) << "and goes on";
}

TEST(RemoteCommands, QuoteForTheShellThatIsThere) {
  const RemoteCommand over = over_remote_shell({"ssh", "-F", "my config"});
  EXPECT_THAT(over("me@far", {"/opt/it's/dtrain", "host-probe"}),
              ElementsAre("ssh", "-F", "my config", "-o", "BatchMode=yes", "-o", "ConnectTimeout=5", "me@far",
                          "'/opt/it'\\''s/dtrain' 'host-probe'"));
  EXPECT_THAT(over("", {"dtrain"}), ElementsAre("dtrain"));
  EXPECT_THAT(over_remote_shell({"rsh"})("far", {"x"}), ElementsAre("rsh", "far", "'x'"));
  EXPECT_THAT(over_srun()("n7", {"x", "y"}),
              ElementsAre("srun", "--overlap", "--quiet", "--nodes=1", "--ntasks=1", "--nodelist=n7", "x", "y"));
}

}  // namespace
}  // namespace dtrain::launcher
