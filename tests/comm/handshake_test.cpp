// Both ends of a handshake, without a connection between them.
#include "dtrain/comm/handshake.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "dtrain/base/error.h"

namespace dtrain::comm {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using State = Handshake::State;

const std::string kSecret = "a secret for tests only";

Introduction rank(std::int64_t number) {
  return {.purpose = "data",
          .session = "run",
          .generation = 2,
          .size = 4,
          .rank = number,
          .server = 1,
          .pid = 4711,
          .host = "node1"};
}

Introduction listener() {
  Introduction own = rank(0);
  own.pid = 815;
  own.host = "node2";
  return own;
}

std::string message(const std::string& frame) {
  return frame.substr(kHandshakeHeaderBytes);
}

void talk(Handshake& client, Handshake& server) {
  const std::string hello = client.receive(message(server.begin()));
  if (hello.empty()) return;
  const std::string answer = server.receive(message(hello));
  if (!answer.empty()) client.receive(message(answer));
}

TEST(Handshake, GivesBothEndsTheSameKeysAndKnowledgeOfEachOther) {
  Handshake client = Handshake::connecting(kSecret, rank(2));
  std::int64_t asked = 0;
  Handshake server = Handshake::listening(kSecret, listener(), [&](const Introduction& other) {
    asked = other.rank;
    return std::string();
  });
  talk(client, server);
  ASSERT_EQ(client.state(), State::kProven) << client.error();
  ASSERT_EQ(server.state(), State::kProven) << server.error();
  EXPECT_EQ(asked, 2);
  EXPECT_EQ(server.other().rank, 2);
  EXPECT_EQ(server.other().pid, 4711);
  EXPECT_EQ(client.other().host, "node2");
  EXPECT_EQ(client.keys().send, server.keys().receive);
  EXPECT_EQ(client.keys().receive, server.keys().send);
  EXPECT_NE(client.keys().send, client.keys().receive);
  EXPECT_EQ(client.keys().send.size(), 32u);
  Handshake again = Handshake::connecting(kSecret, rank(2));
  Handshake there = Handshake::listening(kSecret, listener(), {});
  talk(again, there);
  EXPECT_NE(again.keys().send, client.keys().send) << "each connection has its own";
}

std::string refusal(const std::string& secret, const Introduction& own, const std::string& why_not = {}) {
  Handshake client = Handshake::connecting(secret, own);
  Handshake server = Handshake::listening(kSecret, listener(), [&](const Introduction&) { return why_not; });
  talk(client, server);
  EXPECT_EQ(client.state(), State::kRefused);
  return client.error();
}

TEST(Handshake, RefusesWithAReason) {
  EXPECT_EQ(refusal("another secret for tests", rank(2)), "refused: wrong secret");
  Introduction other = rank(2);
  other.session = "yesterday's";
  EXPECT_EQ(refusal(kSecret, other), "refused: it belongs to run 'yesterday's', this is run 'run'");
  other = rank(2);
  other.generation = 1;
  EXPECT_EQ(refusal(kSecret, other), "refused: it is of generation 1, this is generation 2");
  other = rank(2);
  other.size = 8;
  EXPECT_EQ(refusal(kSecret, other), "refused: it is rank 2 of 8, this is a world of 4");
  other = rank(2);
  other.server = 3;
  EXPECT_EQ(refusal(kSecret, other), "refused: it wants 3, this is 1");
  EXPECT_EQ(refusal(kSecret, rank(2), "rank 2 is taken"), "refused: rank 2 is taken");
  EXPECT_THROW(Handshake::connecting("short", rank(2)), CommError);
}

TEST(Handshake, AProofOfOnePurposeIsNoneOfAnother) {
  Introduction control = rank(2);
  control.purpose = "control";
  EXPECT_EQ(refusal(kSecret, control), "it takes connections for 'data', not for 'control'");
  // Somebody on the path who shows the client the purpose it wants.
  Handshake client = Handshake::connecting(kSecret, control);
  Handshake server = Handshake::listening(kSecret, listener(), {});
  std::string challenge = message(server.begin());
  challenge.replace(challenge.find("data"), 4, "control");
  server.receive(message(client.receive(challenge)));
  EXPECT_EQ(server.error(), "wrong secret");
}

TEST(Handshake, NoByteOfItCanBeChanged) {
  for (std::size_t at = 0; at < 400; ++at) {
    Handshake client = Handshake::connecting(kSecret, rank(2));
    Handshake server = Handshake::listening(kSecret, listener(), {});
    std::string challenge = message(server.begin());
    std::string hello = message(client.receive(challenge));
    if (at >= hello.size()) break;
    hello[at] = static_cast<char>(hello[at] ^ 1);
    server.receive(hello);
    EXPECT_EQ(server.state(), State::kRefused) << at;
  }
  for (std::size_t at = 0; at < 200; ++at) {
    Handshake client = Handshake::connecting(kSecret, rank(2));
    Handshake server = Handshake::listening(kSecret, listener(), {});
    std::string welcome = message(server.receive(message(client.receive(message(server.begin())))));
    if (at >= welcome.size()) break;
    welcome[at] = static_cast<char>(welcome[at] ^ 1);
    client.receive(welcome);
    EXPECT_EQ(client.state(), State::kRefused) << at;
  }
}

TEST(Handshake, AReflectedProofIsNone) {
  // An impostor that sends the client's own words back, in place of a welcome.
  Handshake client = Handshake::connecting(kSecret, rank(2));
  Handshake server = Handshake::listening(kSecret, listener(), {});
  const std::string hello = message(client.receive(message(server.begin())));
  client.receive(hello);
  EXPECT_EQ(client.state(), State::kRefused);
}

TEST(Handshake, WhatARefuserWithoutProofSaysIsShownHarmlessly) {
  Handshake client = Handshake::connecting(kSecret, rank(2));
  Handshake server = Handshake::listening(kSecret, listener(), {});
  (void)client.receive(message(server.begin()));
  client.receive(std::string(32, '\0') + R"({"t":"refused","why":"\u001b[2Jno"})");
  EXPECT_EQ(client.error(), "refused: ?[2Jno");
  EXPECT_FALSE(client.other_is_proven());
}

TEST(Handshake, ATlsHelloAndLongMessagesAreNamed) {
  Handshake server = Handshake::listening(kSecret, listener(), {});
  const unsigned char tls[] = {0x16, 3, 1, 2};
  EXPECT_EQ(server.length_of(tls), 0u);
  EXPECT_THAT(server.error(), HasSubstr("it speaks TLS"));
  Handshake other = Handshake::listening(kSecret, listener(), {});
  const unsigned char longest[] = {0, 0, 16, 1};
  EXPECT_EQ(other.length_of(longest), 0u);
  EXPECT_THAT(other.error(), AllOf(HasSubstr("4097 bytes"), HasSubstr("at most 4096")));
}

}  // namespace
}  // namespace dtrain::comm
