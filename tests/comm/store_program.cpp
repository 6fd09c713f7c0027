// A store that obeys, for tests with PyTorch's own: `store_program serve|connect ADDRESS PORT TIMEOUT_MS` says "port
// N", then answers each line of its input (set KEY HEX, get KEY, erase KEY) with "ok", "value HEX" or "error TEXT".
#include <iostream>
#include <sstream>
#include <string>

#include "dtrain/base/error.h"
#include "dtrain/base/text.h"
#include "dtrain/comm/rendezvous_store.h"

namespace {

std::string from_hex(const std::string& hex) {
  std::string bytes;
  for (std::size_t i = 0; i + 1 < hex.size(); i += 2) {
    bytes.push_back(static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16)));
  }
  return bytes;
}

std::string obey(dtrain::comm::RendezvousStore& store, const std::string& line) {
  std::istringstream words(line);
  std::string command;
  std::string key;
  std::string value;
  words >> command >> key >> value;
  if (command == "get") return "value " + dtrain::to_hex(store.get(key));
  command == "set" ? store.set(key, from_hex(value)) : store.erase(key);
  return "ok";
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) return 2;
  try {
    const auto store = dtrain::comm::RendezvousStore::open({.address = argv[2],
                                                            .port = static_cast<std::uint16_t>(std::stoi(argv[3])),
                                                            .serves = std::string(argv[1]) == "serve",
                                                            .timeout = std::chrono::milliseconds(std::stoi(argv[4]))});
    std::cout << "port " << store->port() << std::endl;
    std::string line;
    while (std::getline(std::cin, line)) {
      try {
        std::cout << obey(*store, line) << std::endl;
      } catch (const dtrain::CommError& error) {
        std::cout << "error " << error.what() << std::endl;
      }
    }
  } catch (const dtrain::CommError& error) {
    std::cout << "error " << error.what() << std::endl;
    return 1;
  }
}
