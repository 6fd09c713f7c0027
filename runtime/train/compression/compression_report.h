// What compression has brought a run: bytes, and time gained or lost against steps that were exchanged uncompressed.
// Training thread only.
#pragma once

#include <string>
#include <vector>

#include "dtrain/base/clock.h"
#include "dtrain/base/json.h"
#include "dtrain/comm/compression.h"
#include "exchange/run_services.h"

namespace dtrain::train {

class CompressionReport {
 public:
  // `name`: "gradient compression", or what else is compressed.
  CompressionReport(std::string name, std::string key) : name_(std::move(name)), key_(std::move(key)) {}

  // A step's exchange cost its rank so much: encoding, decoding and waiting, not what went on beside computing.
  void add(bool compressed, Nanoseconds exposed);
  // Steps so far are not like those that follow.
  void forget();

  // Writes the account and its sentence to plan.json and the log. Collective.
  void write(const comm::CompressionStatistics& statistics, const char* codec, const RunServices& run) const;

  // plan.json's account of it. Collective: times are the mean over ranks.
  Json account(const comm::CompressionStatistics& s, const char* codec, comm::Communicator& communicator) const;
  // The same as a sentence; `loses` is set where it says to switch it off.
  std::string sentence(const Json& account, bool& loses) const;

 private:
  std::string name_;
  std::string key_;              // of the experiment file
  std::vector<double> plain_s_;  // of each step that went uncompressed
  std::vector<double> compressed_s_;
};

}  // namespace dtrain::train
