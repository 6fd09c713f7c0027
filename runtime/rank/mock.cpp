#include "dtrain/rank/mock.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "dtrain/base/error.h"
#include "dtrain/base/text.h"

namespace dtrain::run {
namespace {

struct Word {
  std::string_view name;
  bool Mock::*member;
  std::string_view text;
};
constexpr std::array<Word, 3> kWords{{
    {"loader", &Mock::loader, "one batch is trained on again and again"},
    {"train", &Mock::train, "batches are read, and nothing is done with them"},
    {"comm", &Mock::comm, "gradients are not exchanged"},
}};

const Word& find_word(const std::string& name) {
  const auto found = std::find_if(kWords.begin(), kWords.end(), [&](const Word& word) { return word.name == name; });
  if (found != kWords.end()) return *found;
  std::vector<std::string> names;
  for (const Word& word : kWords) names.emplace_back(word.name);
  throw ConfigError("--mock: there is no '" + name + "'", "it is one of " + join(names, ", ") + ", or loader,comm");
}

std::vector<std::string> of_words(const Mock& mock, std::string_view Word::*part) {
  std::vector<std::string> result;
  for (const Word& word : kWords) {
    if (mock.*word.member) result.emplace_back(word.*part);
  }
  return result;
}

}  // namespace

Mock parse_mock(const std::vector<std::string>& words) {
  Mock mock;
  for (const std::string& list : words) {
    for (const std::string& name : split(list, ',')) mock.*find_word(name).member = true;
  }
  if (mock.train && (mock.loader || mock.comm)) {
    throw ConfigError("--mock: train already leaves out everything but loading, so it cannot be combined",
                      "start one run with --mock train, and another with --mock loader,comm");
  }
  return mock;
}

std::string to_string(const Mock& mock) {
  return join(of_words(mock, &Word::name), ",");
}

std::string mock_text(const Mock& mock) {
  return "mock run (" + to_string(mock) + "): " + join(of_words(mock, &Word::text), ", ") +
         "; its weights mean nothing";
}

Json to_json(const Mock& mock) {
  return {{"what", to_string(mock)}, {"text", mock_text(mock)}};
}

void check_mock(const Mock& mock, int world_size) {
  if (!mock.comm || world_size > 1) return;
  throw ConfigError("--mock comm: a run with one rank has no exchange to leave out",
                    "leave it out, or give the run more ranks (resources.slots_per_trial)");
}

}  // namespace dtrain::run
