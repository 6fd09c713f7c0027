#include "dtrain/base/unix_socket.h"

#include <cerrno>
#include <cstdio>
#include <set>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "dtrain/base/error.h"
#include "dtrain/base/shared_memory.h"

namespace dtrain {
namespace {

using namespace std::chrono_literals;
constexpr auto kPatience = 20s;  // only ever waited out by a failure

struct Pair {
  UnixSocket a;
  UnixSocket b;
};

Pair make_pair() {
  UnixListener listener = UnixListener::create("test");
  UnixSocket a = UnixSocket::connect(listener.name(), kPatience);
  auto b = listener.accept(kPatience);
  if (!b) throw CommError("not accepted");
  return {std::move(a), std::move(*b)};
}

TEST(UnixSocket, KeepsMessageBoundaries) {
  Pair pair = make_pair();
  EXPECT_TRUE(pair.a.send("one"));
  EXPECT_TRUE(pair.a.send(std::string(60'000, 'x')));
  EXPECT_TRUE(pair.a.send(std::string("\0two", 4)));
  EXPECT_EQ(pair.b.receive(kPatience)->data, "one");
  EXPECT_EQ(pair.b.receive(kPatience)->data, std::string(60'000, 'x'));
  EXPECT_EQ(pair.b.receive(kPatience)->data, std::string("\0two", 4));
  EXPECT_TRUE(pair.b.send("back"));
  EXPECT_EQ(pair.a.receive(kPatience)->data, "back");
}

TEST(UnixSocket, CarriesDescriptors) {
  Pair pair = make_pair();
  const SharedMemory first = SharedMemory::create("first", 4096);
  const SharedMemory second = SharedMemory::create("second", 8192);
  first.data()[0] = std::byte{11};
  second.data()[0] = std::byte{22};
  const int fds[] = {first.fd(), second.fd()};
  EXPECT_TRUE(pair.a.send("two", fds));
  auto message = pair.b.receive(kPatience);
  ASSERT_TRUE(message);
  ASSERT_EQ(message->fds.size(), 2u);
  EXPECT_EQ(SharedMemory::map(std::move(message->fds[0])).data()[0], std::byte{11});
  const SharedMemory mapped = SharedMemory::map(std::move(message->fds[1]));
  EXPECT_EQ(mapped.data()[0], std::byte{22});
  EXPECT_EQ(mapped.size(), second.size());
}

TEST(UnixSocket, SixtyFourDescriptorsAreTheMost) {
  Pair pair = make_pair();
  const std::vector<int> fds(64, 0);
  EXPECT_TRUE(pair.a.send("x", fds));
  EXPECT_EQ(pair.b.receive(kPatience)->fds.size(), 64u);
  EXPECT_THROW(pair.a.send("x", std::vector<int>(65, 0)), SystemError);
  EXPECT_THROW(pair.a.send(std::string(65'537, 'x')), SystemError);
  EXPECT_THROW(pair.a.send(""), SystemError);
}

TEST(UnixSocket, TellsATimeOutFromAGonePeer) {
  Pair pair = make_pair();
  bool timed_out = false;
  EXPECT_FALSE(pair.a.receive(1ms, &timed_out));
  EXPECT_TRUE(timed_out);
  EXPECT_TRUE(pair.b.send("last words"));
  pair.b.close();
  EXPECT_EQ(pair.a.receive(kPatience, &timed_out)->data, "last words");
  EXPECT_FALSE(pair.a.receive(kPatience, &timed_out));
  EXPECT_FALSE(timed_out);
  EXPECT_FALSE(pair.a.send("anyone?")) << "and no SIGPIPE";
}

TEST(UnixSocket, SeesAPeerThatWasKilled) {
  UnixListener listener = UnixListener::create("test");
  const pid_t child = ::fork();
  if (child == 0) {
    const UnixSocket socket = UnixSocket::connect(listener.name(), kPatience);
    ::pause();
    ::_exit(0);
  }
  auto peer = listener.accept(kPatience);
  ASSERT_TRUE(peer);
  ::kill(child, SIGKILL);
  bool timed_out = true;
  EXPECT_FALSE(peer->receive(kPatience, &timed_out));
  EXPECT_FALSE(timed_out);
  ::waitpid(child, nullptr, 0);
}

TEST(UnixSocket, ConnectWaitsForTheListener) {
  // The name is known before there is a listener: that of one that is gone, taken again later.
  std::string name;
  { name = UnixListener::create("late").name(); }
  try {
    UnixSocket::connect(name, 20ms);
    FAIL();
  } catch (const SystemError& error) {
    EXPECT_EQ(error.code(), ECONNREFUSED);
    EXPECT_THAT(error.what(), testing::HasSubstr(name));
  }
}

TEST(UnixListener, AcceptEndsWithItsTime) {
  UnixListener listener = UnixListener::create("test");
  EXPECT_FALSE(listener.accept(0ms));
  EXPECT_FALSE(listener.accept(5ms));
}

TEST(UnixListener, CanBeHandedOn) {
  UnixListener listener = UnixListener::create("test");
  const std::string name = listener.name();
  UnixListener heir(UniqueFd(listener.release()), name);
  const UnixSocket socket = UnixSocket::connect(name, kPatience);
  EXPECT_TRUE(heir.accept(kPatience));
}

TEST(UnixListener, TurnsOtherUsersAway) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  UnixListener listener = UnixListener::create("test");
  const pid_t child = ::fork();
  if (child == 0) {
    if (::setresgid(65534, 65534, 65534) != 0 || ::setresuid(65534, 65534, 65534) != 0) ::_exit(2);
    UnixSocket socket = UnixSocket::connect(listener.name(), kPatience);
    bool timed_out = false;
    const bool answered = socket.receive(kPatience, &timed_out).has_value();
    ::_exit(!answered && !timed_out ? 0 : 1);
  }
  EXPECT_FALSE(listener.accept(200ms)) << "a stranger must not be returned";
  int status = 0;
  // The connection is closed by accept, which may not have seen it within its time on a busy machine.
  while (::waitpid(child, &status, WNOHANG) == 0) EXPECT_FALSE(listener.accept(10ms));
  EXPECT_EQ(status, 0) << "the stranger sees its connection closed";
}

constexpr uid_t kNobody = 65534;

bool become_nobody() {
  return ::geteuid() != 0 ||
         (::setresgid(kNobody, kNobody, kNobody) == 0 && ::setresuid(kNobody, kNobody, kNobody) == 0);
}

// A process that guesses a name could listen there first.
TEST(UnixSocket, DoesNotSpeakToAnotherUsersListener) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  int name_pipe[2];
  ASSERT_EQ(::pipe(name_pipe), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    if (!become_nobody()) ::_exit(2);
    UnixListener listener = UnixListener::create("test");
    const std::string& name = listener.name();
    if (::write(name_pipe[1], name.data(), name.size()) != static_cast<ssize_t>(name.size())) ::_exit(3);
    // The stranger's listener receives nothing.
    auto heard = listener.accept(kPatience);
    ::_exit(heard && !heard->receive(kPatience) ? 0 : 1);
  }
  ::close(name_pipe[1]);
  char name[200];
  const ssize_t length = ::read(name_pipe[0], name, sizeof name);
  ::close(name_pipe[0]);
  ASSERT_GT(length, 0);
  try {
    UnixSocket socket = UnixSocket::connect(std::string(name, static_cast<std::size_t>(length)), kPatience);
    socket.send("secret");
    ADD_FAILURE() << "it was spoken to";
  } catch (const SystemError& error) {
    EXPECT_EQ(error.code(), EACCES);
    EXPECT_THAT(error.what(), testing::HasSubstr("belongs to user 65534, not to user 0"));
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

// The kernel refuses an ordinary user's descriptors when as many are on their way as files may be open.
TEST(UnixSocket, DescriptorsWaitWhileTooManyAreOnTheirWay) {
  const pid_t child = ::fork();
  if (child == 0) {
    constexpr int kMessages = 200;
    const rlimit few{64, 64};
    if (!become_nobody() || ::setrlimit(RLIMIT_NOFILE, &few) != 0) ::_exit(2);
    try {
      Pair pair = make_pair();
      int received = 0;
      std::thread receiver([&] {
        std::this_thread::sleep_for(50ms);  // the sender is stuck by now, or will never be
        while (received < kMessages && pair.b.receive(kPatience)->fds.size() == 1) ++received;
      });
      const int fd = 0;
      for (int i = 0; i < kMessages; ++i) pair.a.send("one", {&fd, 1});
      receiver.join();
      ::_exit(received == kMessages ? 0 : 1);
    } catch (const std::exception& error) {
      std::fprintf(stderr, "%s\n", error.what());
      ::_exit(3);
    }
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST(RaiseOpenFiles, ToTheHardLimitAndNoFurther) {
  const pid_t child = ::fork();
  if (child == 0) {
    const rlimit low{100, 300};
    if (::setrlimit(RLIMIT_NOFILE, &low) != 0 || raise_open_files() != 300) ::_exit(1);
    rlimit now{};
    ::getrlimit(RLIMIT_NOFILE, &now);
    ::_exit(now.rlim_cur == 300 && now.rlim_max == 300 && raise_open_files() == 300 ? 0 : 2);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST(UnixSocket, ConnectingEndsWhenItHasBecomePointless) {
  int attempts = 0;
  const auto pointless_at_the_third = [&] {
    if (++attempts == 3) throw CommError("the run is over");
  };
  EXPECT_THROW(UnixSocket::connect("dtrain-test-nobody", kPatience, pointless_at_the_third), CommError);
  EXPECT_EQ(attempts, 3);
}

TEST(RandomHex, HasTheLengthAskedForAndDiffers) {
  std::set<std::string> seen;
  for (int i = 0; i < 100; ++i) seen.insert(random_hex(8));
  EXPECT_EQ(seen.size(), 100u);
  EXPECT_EQ(random_hex(100).size(), 200u);
  EXPECT_EQ(random_hex(0), "");
  EXPECT_EQ(random_hex(16).find_first_not_of("0123456789abcdef"), std::string::npos);
}

}  // namespace
}  // namespace dtrain
