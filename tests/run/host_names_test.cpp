#include "membership.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "dtrain/base/error.h"
#include "dtrain/base/file.h"

namespace dtrain::rank {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::HasSubstr;

// A port of this host that is bound and on which nothing listens yet.
class BoundPort {
 public:
  BoundPort() : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof address;
    EXPECT_EQ(::bind(fd_.get(), reinterpret_cast<sockaddr*>(&address), length), 0);
    EXPECT_EQ(::getsockname(fd_.get(), reinterpret_cast<sockaddr*>(&address), &length), 0);
    number_ = ntohs(address.sin_port);
  }
  std::uint16_t number() const { return number_; }
  void listen() { EXPECT_EQ(::listen(fd_.get(), 5), 0); }

 private:
  UniqueFd fd_;
  std::uint16_t number_ = 0;
};

std::string error_of_wait(const HostWait& wait) {
  try {
    (void)await_listener(wait);
  } catch (const CommError& error) {
    return error.what();
  }
  return "no error";
}

TEST(HostNames, AListenerThatComesLaterIsFound) {
  BoundPort port;
  std::thread later([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    port.listen();
  });
  EXPECT_EQ(await_listener({.name = "localhost", .port = port.number(), .waiter = "rank 1"}), "127.0.0.1");
  later.join();
}

TEST(HostNames, AHintNamesARankZeroElsewhere) {
  EXPECT_THAT(hint_of_other_host({.name = "192.0.2.7", .port = 29500}),  // of no host (RFC 5737)
              AllOf(HasSubstr("MASTER_ADDR is 192.0.2.7 (192.0.2.7), which is no address of this host"),
                    HasSubstr("set LOCAL_RANK and LOCAL_WORLD_SIZE")));
  for (const char* here : {"localhost", "127.0.0.1", "127.0.1.1", ".."}) {
    EXPECT_EQ(hint_of_other_host({.name = here, .port = 29500}), "") << here;
  }
}

TEST(HostNames, TheDeadlineSaysWhatIsMissing) {
  const BoundPort port;
  const std::chrono::milliseconds deadline(300);
  EXPECT_THAT(error_of_wait({.name = "127.0.0.1", .port = port.number(), .timeout = deadline, .waiter = "rank 1"}),
              AllOf(HasSubstr("rank 1 has waited 300 ms for rank 0: 127.0.0.1 (127.0.0.1) port "),
                    HasSubstr(": Connection refused")));
  EXPECT_THAT(error_of_wait({.name = "..", .port = port.number(), .timeout = deadline, .waiter = "rank 1"}),
              HasSubstr("rank 1 has waited 300 ms for rank 0: the name .. does not resolve: "));
}

TEST(HostNames, OnlyAnAddressOfThisHostIsItsOwn) {
  EXPECT_THAT(resolve("localhost").addresses, Contains("127.0.0.1"));
  EXPECT_EQ(await_own_address({.name = "127.0.0.1", .timeout = std::chrono::milliseconds(300), .waiter = "rank 0"}),
            "127.0.0.1");
  // Of the addresses that are kept for documents.
  EXPECT_THROW(
      (void)await_own_address({.name = "192.0.2.7", .timeout = std::chrono::milliseconds(300), .waiter = "rank 0"}),
      CommError);
}

}  // namespace
}  // namespace dtrain::rank
