// Which of a machine's addresses others are told.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "dtrain/base/error.h"
#include "dtrain/host/identity.h"
#include "dtrain/host/reachable_address.h"

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
