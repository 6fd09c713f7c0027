// Which of a machine's addresses other hosts get.
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "dtrain/base/error.h"
#include "dtrain/host/network.h"

namespace dtrain::host {
namespace {

using testing::HasSubstr;

const std::vector<InterfaceAddress> kTwo = {{"lo", "127.0.0.1", true},      {"eth0", "fe80::1", false},
                                            {"eth0", "2001:db8::7", false}, {"eth0", "10.1.2.3", false},
                                            {"ib0", "192.168.9.4", false},  {"lo", "::1", true}};

std::string error_of(const std::string& wanted, const std::vector<InterfaceAddress>& addresses) {
  try {
    const std::string address = choose_address(wanted, addresses, "", "here: ");
    return "no error, but " + address;
  } catch (const ConfigError& error) {
    return std::string(error.what()) + " / " + error.remedy();
  }
}

TEST(ReachableAddress, AnInterfaceByName) {
  EXPECT_EQ(choose_address("ib0", kTwo, "eth0", ""), "192.168.9.4");
  EXPECT_EQ(choose_address("eth0", kTwo, "", ""), "10.1.2.3") << "IPv4 first, never link-local";
  EXPECT_THAT(error_of("eth7", kTwo), testing::AllOf(HasSubstr("here: this host has no interface 'eth7'"),
                                                     HasSubstr("eth0 (10.1.2.3)"), HasSubstr("ib0 (192.168.9.4)")));
}

TEST(ReachableAddress, ANetwork) {
  EXPECT_EQ(choose_address("192.168.0.0/16", kTwo, "eth0", ""), "192.168.9.4");
  EXPECT_EQ(choose_address("192.168.9.0/29", kTwo, "eth0", ""), "192.168.9.4");
  EXPECT_EQ(choose_address("2001:db8::/32", kTwo, "", ""), "2001:db8::7");
  EXPECT_EQ(choose_address("0.0.0.0/0", kTwo, "", ""), "127.0.0.1");
  EXPECT_THAT(error_of("192.168.9.8/29", kTwo), HasSubstr("no address of this host is in 192.168.9.8/29"));
  for (const char* wrong : {"10.0.0.0/", "10.0.0.0/33", "10.0.0/8", "/8", "10.0.0.0/8x", "10.0.0.0/-1"}) {
    EXPECT_THAT(error_of(wrong, kTwo), HasSubstr("is not a network")) << wrong;
  }
}

TEST(ReachableAddress, TheKernelsRoutesSayWhereFrom) {
  EXPECT_EQ(source_address("127.0.0.1"), "127.0.0.1");
  EXPECT_EQ(source_address("::1"), "::1");
  EXPECT_EQ(source_address("nonsense"), "");
  EXPECT_EQ(interface_of("127.0.0.0/8", ""), "lo");
  EXPECT_THROW(interface_of("none7", ""), ConfigError);
}

TEST(IpNetworks, TextAndContents) {
  EXPECT_EQ(parse_network("10.1.2.3/16")->text(), "10.1.0.0/16");
  EXPECT_EQ(parse_network("2001:db8::7/32")->text(), "2001:db8::/32");
  EXPECT_EQ(network_of("10.71.1.77", 25)->text(), "10.71.1.0/25");
  EXPECT_EQ(network_of("10.71.1.177", 25)->text(), "10.71.1.128/25");
  for (const char* wrong : {"", "10.1.2.3", "10.1.2.3/33", "::/129", "10.1.2/8", "10.1.2.3/x", "10.1.2.3/ 8"})
    EXPECT_FALSE(parse_network(wrong)) << wrong;
  const IpNetwork wide = *parse_network("10.1.0.0/16");
  EXPECT_TRUE(wide.contains(*network_of("10.1.255.255")));
  EXPECT_TRUE(wide.contains(*parse_network("10.1.128.0/17")));
  EXPECT_TRUE(wide.contains(wide));
  EXPECT_FALSE(wide.contains(*network_of("10.2.0.0")));
  EXPECT_FALSE(wide.contains(*parse_network("10.0.0.0/8")));
  EXPECT_TRUE(parse_network("0.0.0.0/0")->contains(wide));
  EXPECT_FALSE(parse_network("::/0")->contains(wide));
}

TEST(Interfaces, PrefixAndSpeed) {
  const std::vector<InterfaceAddress> addresses = interface_addresses();
  const auto loopback = std::find_if(addresses.begin(), addresses.end(),
                                     [](const InterfaceAddress& one) { return one.address == "127.0.0.1"; });
  ASSERT_NE(loopback, addresses.end());
  EXPECT_EQ(loopback->prefix, 8);
  const std::filesystem::path root = std::filesystem::path(testing::TempDir()) / "dtrain-link-speed";
  const auto speed_of = [&](const std::string& text) {
    std::filesystem::create_directories(root / "sys/class/net/eth0");
    std::ofstream(root / "sys/class/net/eth0/speed") << text;
    return link_speed("eth0", root);
  };
  EXPECT_EQ(speed_of("25000\n"), 25'000'000'000);
  EXPECT_EQ(speed_of("-1\n"), std::nullopt);
  EXPECT_EQ(speed_of("4294967295\n"), std::nullopt) << "what older kernels say instead of -1";
  EXPECT_EQ(link_speed("eth1", root), std::nullopt);
  std::filesystem::remove_all(root);
}

TEST(ReachableAddress, WithoutAWish) {
  EXPECT_EQ(choose_address("auto", kTwo, "ib0", ""), "192.168.9.4") << "the default route's";
  EXPECT_EQ(choose_address("", {kTwo[0], kTwo[3]}, "", ""), "10.1.2.3") << "the only one";
  EXPECT_EQ(choose_address("", {kTwo[0], kTwo[5]}, "", ""), "127.0.0.1") << "nobody else can come";
  EXPECT_THAT(error_of("", kTwo), HasSubstr("DTRAIN_NETWORK_INTERFACE"));
}

TEST(ReachableAddress, OfThisMachine) {
  EXPECT_EQ(reachable_address("lo", ""), "127.0.0.1");
  EXPECT_EQ(reachable_address("127.0.0.0/8", ""), "127.0.0.1");
}

TEST(HostNames, AreThoseOfThisMachine) {
  const HostNames names;
  const std::string name = host_identity().name;
  for (const std::string& own : {name, std::string("localhost"), std::string("127.0.0.1"), std::string("::1")}) {
    EXPECT_TRUE(names.contains(own)) << own;
  }
  if (name.find('.') == std::string::npos) {
    EXPECT_TRUE(names.contains(name + ".example.org"));
  }
  for (const std::string& other : {"x" + name, name + "x", std::string("192.0.2.1"), std::string()}) {
    EXPECT_FALSE(names.contains(other)) << other;
  }
}

}  // namespace
}  // namespace dtrain::host
