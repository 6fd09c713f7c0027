#include "scope_table.h"

#include <algorithm>

#include "dtrain/base/error.h"
#include "dtrain/profile/scope.h"

namespace dtrain::profile {
namespace {

bool is_plain(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-' || c == '.';
}

}  // namespace

std::size_t ScopeTable::find(std::string_view name) {
  const std::size_t parent = open_.empty() ? kNone : open_.back().path;
  for (std::size_t i = 0; i < paths_.size(); ++i) {
    if (paths_[i].parent == parent && paths_[i].name == name) return i;
  }
  return add(parent, name);
}

std::size_t ScopeTable::add(std::size_t parent, std::string_view name) {
  const std::string whole = (parent == kNone ? "" : paths_[parent].whole + "/") + std::string(name);
  if (name.empty() || !std::all_of(name.begin(), name.end(), is_plain)) {
    throw Error("context.scope(\"" + std::string(name) + "\"): this is no name of a scope",
                "use letters, digits, '_', '-' and '.', at least one");
  }
  if (whole.size() > Scope::kMostPathBytes) {
    throw Error("the scope '" + whole + "' has a path of " + std::to_string(whole.size()) + " characters; at most " +
                    std::to_string(Scope::kMostPathBytes) + " are possible",
                "use shorter names, or nest fewer scopes");
  }
  if (paths_.size() == Scope::kMostPaths) {
    throw Error("the scope '" + whole + "' would be the " + std::to_string(Scope::kMostPaths + 1) +
                    "th of this program; at most " + std::to_string(Scope::kMostPaths) + " are possible",
                "use the same names in every batch: a name that contains a number is a new scope for each number");
  }
  paths_.push_back({.parent = parent, .name = std::string(name), .whole = whole});
  return paths_.size() - 1;
}

std::uint64_t ScopeTable::open(std::size_t path, std::int64_t now_ns, const PhaseTimes& before) {
  open_.push_back({++opened_, path, true, now_ns, before});
  return opened_;
}

std::uint64_t ScopeTable::open_untimed(std::size_t path) {
  open_.push_back({.number = ++opened_, .path = path});
  return opened_;
}

// Searches from the innermost scope, which it usually is.
bool ScopeTable::is_open(std::uint64_t scope) const {
  return std::any_of(open_.rbegin(), open_.rend(), [scope](const Open& open) { return open.number == scope; });
}

ScopeTable::Ended ScopeTable::end_innermost(const PhaseTimes& after) {
  const Open& open = open_.back();
  Path& path = paths_[open.path];
  const Ended ended{path.whole, open.start_ns, open.is_timed};
  if (open.is_timed) {
    if (path.calls++ == 0) used_.push_back(open.path);
    for (std::size_t i = 0; i < kPhaseCount; ++i) path.times[i] += after[i] - open.before[i];
  }
  open_.pop_back();
  return ended;
}

ScopeRecord ScopeTable::payload_of(const Path& path) {
  ScopeRecord payload{};
  payload.calls = path.calls;
  payload.phases = path.times;
  path.whole.copy(payload.path, sizeof payload.path - 1);
  return payload;
}

void ScopeTable::clear() {
  for (const std::size_t used : used_) {
    paths_[used].calls = 0;
    paths_[used].times = {};
  }
  used_.clear();
  open_.clear();
}

}  // namespace dtrain::profile
