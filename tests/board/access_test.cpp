// Who may ask the board for what.
#include "access.h"

#include <gtest/gtest.h>

namespace dtrain::board {
namespace {

const AccessRules kRules{.token = "0123abcd", .hosts = {"127.0.0.1:8000", "localhost:8000"}, .control = true};

Visitor reader() {
  return {.method = "GET", .host = "127.0.0.1:8000", .token_in_cookie = "0123abcd"};
}

Visitor writer() {
  Visitor visitor = reader();
  visitor.method = "POST";
  visitor.origin = "http://127.0.0.1:8000";
  return visitor;
}

TEST(BoardAccess, TheTokenOpensIt) {
  EXPECT_EQ(judge(reader(), kRules), Verdict::kAllowed);
  Visitor visitor = reader();
  visitor.token_in_cookie = {};
  EXPECT_EQ(judge(visitor, kRules), Verdict::kNoToken);
  for (const char* wrong : {"0123abce", "0123abc", "0123abcd0", " "}) {
    visitor.token_in_cookie = visitor.token_in_url = wrong;
    EXPECT_EQ(judge(visitor, kRules), Verdict::kNoToken) << wrong;
  }
  visitor.token_in_url = "0123abcd";
  EXPECT_EQ(judge(visitor, kRules), Verdict::kGiveCookie);
}

TEST(BoardAccess, ATokenInTheUrlChangesNothing) {
  Visitor visitor = writer();
  visitor.token_in_url = "0123abcd";
  visitor.token_in_cookie = {};
  EXPECT_EQ(judge(visitor, kRules), Verdict::kNoToken);
}

TEST(BoardAccess, AnEmptyTokenOpensNothing) {
  AccessRules rules = kRules;
  rules.token = "";
  Visitor visitor = reader();
  visitor.token_in_cookie = {};
  EXPECT_EQ(judge(visitor, rules), Verdict::kNoToken);
}

TEST(BoardAccess, OnlyItsOwnNamesLeadToIt) {
  Visitor visitor = reader();
  for (const char* host : {"LocalHost:8000", "127.0.0.1:8000"}) {
    visitor.host = host;
    EXPECT_EQ(judge(visitor, kRules), Verdict::kAllowed) << host;
  }
  for (const char* host : {"", "127.0.0.1", "127.0.0.1:8001", "evil.example:8000", "127.0.0.1:8000.evil.example"}) {
    visitor.host = host;
    EXPECT_EQ(judge(visitor, kRules), Verdict::kWrongHost) << host;
  }
}

TEST(BoardAccess, OnlyItsOwnPageChangesAnything) {
  EXPECT_EQ(judge(writer(), kRules), Verdict::kAllowed);
  Visitor visitor = writer();
  for (const char* origin :
       {"", "null", "http://evil.example", "http://127.0.0.1:8001", "http://localhost.evil:8000"}) {
    visitor.origin = origin;
    EXPECT_EQ(judge(visitor, kRules), Verdict::kForeignOrigin) << origin;
  }
}

TEST(BoardAccess, WithoutControlItOnlyShows) {
  AccessRules rules = kRules;
  rules.control = false;
  EXPECT_EQ(judge(writer(), rules), Verdict::kReadOnly);
  EXPECT_EQ(judge(reader(), rules), Verdict::kAllowed);
}

TEST(BoardAccess, ItKnowsThreeMethods) {
  Visitor visitor = reader();
  visitor.method = "HEAD";
  EXPECT_EQ(judge(visitor, kRules), Verdict::kAllowed);
  for (const char* method : {"PUT", "DELETE", "OPTIONS", "get", ""}) {
    visitor.method = method;
    EXPECT_EQ(judge(visitor, kRules), Verdict::kWrongMethod) << method;
  }
}

TEST(BoardAccess, FindsACookieAmongOthers) {
  EXPECT_EQ(cookie_of("a=1; board=2; c=3", "board"), "2");
  EXPECT_EQ(cookie_of("board=2", "board"), "2");
  EXPECT_EQ(cookie_of("myboard=1; board=", "board"), "");
  EXPECT_EQ(cookie_of("myboard=1", "board"), "");
  EXPECT_EQ(cookie_of("", "board"), "");
  EXPECT_EQ(cookie_of(";;=;board", "board"), "");
}

}  // namespace
}  // namespace dtrain::board
