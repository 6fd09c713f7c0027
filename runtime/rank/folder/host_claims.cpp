#include "dtrain/rank/host_claims.h"

#include <unistd.h>

#include <cerrno>
#include <optional>

#include "dtrain/base/error.h"
#include "dtrain/base/file.h"
#include "dtrain/base/json.h"
#include "dtrain/base/unix_socket.h"

namespace dtrain::rank {
namespace {

namespace fs = std::filesystem;

constexpr const char* kPrefix = ".hosts-of-attempt-";

fs::path claim_file(const RunFolder& folder, int attempt) {
  return folder.path / (kPrefix + std::to_string(attempt + 1));
}

std::optional<HostClaim> claim_in(const fs::path& file) {
  try {
    const Json json = Json::parse(read_file(file));
    return HostClaim{json.at("hosts").get<std::vector<int>>(), json.at("gone").get<std::vector<std::string>>()};
  } catch (const std::exception&) {
    return std::nullopt;  // there is none
  }
}

}  // namespace

bool claim_attempt(const RunFolder& folder, int attempt, const HostClaim& claim) {
  const fs::path file = claim_file(folder, attempt);
  const fs::path own = file.string() + "-" + random_hex(8);
  write_file_atomic(own, to_line({{"hosts", claim.hosts}, {"gone", claim.gone}}) + "\n");
  // Of several hosts one alone makes the link, on a network file system too.
  const bool made = ::link(own.c_str(), file.c_str()) == 0;
  const int error = errno;
  ::unlink(own.c_str());
  if (made) return true;
  if (error != EEXIST) throw SystemError("cannot make " + file.string(), error);
  return claim_in(file) == claim;  // of these very hosts, whose meeting was broken off
}

std::vector<std::string> hosts_gone(const RunFolder& folder, int attempt) {
  const auto claim = claim_in(claim_file(folder, attempt));
  return claim ? claim->gone : std::vector<std::string>();
}

void forget_claims(const RunFolder& folder) {
  std::error_code code;
  std::vector<fs::path> claims;
  for (const auto& entry : fs::directory_iterator(folder.path, code)) {
    if (entry.path().filename().string().starts_with(kPrefix)) claims.push_back(entry.path());
  }
  for (const fs::path& claim : claims) fs::remove(claim, code);
}

}  // namespace dtrain::rank
