#include "access.h"

#include <algorithm>
#include <cctype>

namespace dtrain::board {
namespace {

bool names_this_server(std::string_view host, const AccessRules& rules) {
  return std::ranges::find(rules.hosts, lower_case(host)) != rules.hosts.end();
}

// "http://127.0.0.1:8080" has the host of a page of ours.
bool is_ours(std::string_view origin, const AccessRules& rules) {
  const std::size_t scheme = origin.find("://");
  return scheme != std::string_view::npos && names_this_server(origin.substr(scheme + 3), rules);
}

}  // namespace

std::string lower_case(std::string_view text) {
  std::string result(text);
  std::ranges::transform(result, result.begin(), [](unsigned char letter) { return std::tolower(letter); });
  return result;
}

bool same_secret(std::string_view a, std::string_view b) {
  if (a.size() != b.size() || a.empty()) return false;
  unsigned difference = 0;
  for (std::size_t i = 0; i < a.size(); ++i) difference |= static_cast<unsigned char>(a[i] ^ b[i]);
  return difference == 0;
}

std::string_view cookie_of(std::string_view header, std::string_view name) {
  while (!header.empty()) {
    const std::size_t end = std::min(header.find(';'), header.size());
    std::string_view pair = header.substr(0, end);
    header.remove_prefix(std::min(end + 1, header.size()));
    pair.remove_prefix(std::min(pair.find_first_not_of(' '), pair.size()));
    if (pair.size() > name.size() && pair.starts_with(name) && pair[name.size()] == '=')
      return pair.substr(name.size() + 1);
  }
  return {};
}

Verdict judge(const Visitor& visitor, const AccessRules& rules) {
  const bool reads = visitor.method == "GET" || visitor.method == "HEAD";
  if (!reads && visitor.method != "POST") return Verdict::kWrongMethod;
  if (!names_this_server(visitor.host, rules)) return Verdict::kWrongHost;
  const bool has_cookie = same_secret(visitor.token_in_cookie, rules.token);
  if (reads && same_secret(visitor.token_in_url, rules.token)) return Verdict::kGiveCookie;
  if (!has_cookie) return Verdict::kNoToken;
  if (reads) return Verdict::kAllowed;
  if (!is_ours(visitor.origin, rules)) return Verdict::kForeignOrigin;
  return rules.control ? Verdict::kAllowed : Verdict::kReadOnly;
}

}  // namespace dtrain::board
