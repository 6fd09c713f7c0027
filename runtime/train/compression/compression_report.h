// Reports the effect of compression on a run: bytes, and time gained or lost against steps that were exchanged
// uncompressed. Training thread only.
#pragma once

#include <string>
#include <vector>

#include "dtrain/base/clock.h"
#include "dtrain/base/json.h"
#include "dtrain/comm/compression.h"
#include "run_services.h"

namespace dtrain::train {

class CompressionReport {
 public:
  // `name`: "gradient compression", or another use of compression.
  CompressionReport(std::string name, std::string key) : name_(std::move(name)), key_(std::move(key)) {}

  // Adds the time that a step's exchange delayed its rank: encoding, decoding and waiting, without overlapped parts.
  void add(bool compressed, Nanoseconds exposed);
  // Discards the steps so far, which are not like later ones.
  void forget();

  // Writes account() and sentence() to plan.json and the log. Collective.
  void write(const comm::CompressionStatistics& statistics, const char* codec, const RunServices& run) const;

  // Returns the account for plan.json. Collective: times are the mean over ranks.
  Json account(const comm::CompressionStatistics& s, const char* codec, comm::Communicator& communicator) const;
  // Returns the account as a sentence. Sets `loses` if the sentence advises to switch compression off.
  std::string sentence(const Json& account, bool& loses) const;

 private:
  std::string name_;
  std::string key_;              // of the experiment file
  std::vector<double> plain_s_;  // seconds of each uncompressed step
  std::vector<double> compressed_s_;
};

}  // namespace dtrain::train
