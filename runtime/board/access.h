// Who may ask the board for what. Pure functions; any thread.
//
// Whoever has the token may read; the token comes in the URL once and is kept in a cookie. A page of another site, to
// which the user's browser may be led, cannot use it: the Host header must name this server (DNS rebinding), the cookie
// is SameSite=Strict, and a request that changes something must come from our own page (its Origin).
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace dtrain::board {

struct AccessRules {
  std::string token;
  std::vector<std::string> hosts;  // the values of Host that name this server, lower case
  bool control = false;            // requests may change something
};

// What access depends on in a request. Empty: the request does not have it.
struct Visitor {
  std::string_view method, host, origin;
  std::string_view token_in_url, token_in_cookie;
};

enum class Verdict {
  kAllowed,
  kGiveCookie,     // the token is in the URL: the answer is a redirection with the cookie
  kWrongHost,      // 421
  kNoToken,        // 401
  kForeignOrigin,  // 403
  kReadOnly,       // 403
  kWrongMethod,    // 405
};
Verdict judge(const Visitor& visitor, const AccessRules& rules);

// Returns the text with ASCII letters in lower case, as names of hosts are compared.
std::string lower_case(std::string_view text);

// Compares in a time that does not depend on where the texts differ.
bool same_secret(std::string_view a, std::string_view b);

// Returns the value of a cookie in the header; empty: it is not there.
std::string_view cookie_of(std::string_view header, std::string_view name);

}  // namespace dtrain::board
