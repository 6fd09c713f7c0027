// The main() of a trial of these tests:
//
//   program experiment.yaml [--run-dir DIR] …      a rank, as of any trial
//   program --cases CASES.json RESULTS.json        a rank of several runs, one after the other in this process: the
//                                                  start of libtorch takes longer than a short run (many_runs.py)
//
// CASES.json: [{"arguments": ["experiment.yaml", …], "environment": {"MASTER_PORT": "1"}}, …]. RESULTS.json gets a
// line a run: its exit code and what `finish` says of it.
#pragma once

#include <cstdlib>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include <dtrain/dtrain.h>

namespace dtrain::test {

template <typename T>
int run_trial_or_cases(
    int argc, char** argv, const std::function<Json()>& finish = [] { return Json::object(); }) {
  if (argc != 4 || std::string(argv[1]) != "--cases") return run_trial<T>(argc, argv);
  std::ofstream results(argv[3]);
  std::ifstream input(argv[2]);
  for (const Json& one : Json::parse(input)) {
    for (const auto& [name, value] : one.at("environment").items()) {
      ::setenv(name.c_str(), value.template get<std::string>().c_str(), 1);
    }
    auto arguments = one.at("arguments").get<std::vector<std::string>>();
    std::vector<char*> words{argv[0]};
    for (std::string& argument : arguments) words.push_back(argument.data());
    words.push_back(nullptr);
    const int code = run_trial<T>(static_cast<int>(words.size()) - 1, words.data());
    Json result = finish();
    result["exit_code"] = code;
    results << result.dump() << std::endl;
  }
  return 0;
}

}  // namespace dtrain::test
