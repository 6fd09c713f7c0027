#include "support.h"

#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <vector>

#include <sys/mman.h>
#include <unistd.h>

namespace dtrain::fuzz {

InputFile::InputFile(Input content) : fd_(::memfd_create("fuzz", MFD_CLOEXEC)) {
  if (!fd_ || ::write(fd_.get(), content.data(), content.size()) != static_cast<ssize_t>(content.size())) {
    throw std::runtime_error("cannot make a file in memory");
  }
}

std::pair<Input, Input> split(Input input) {
  if (input.size() < 2) return {input, {}};
  const auto wanted = static_cast<std::size_t>(input[0] | input[1] << 8);
  const auto rest = input.subspan(2);
  const auto first = std::min(wanted, rest.size());
  return {rest.first(first), rest.subspan(first)};
}

void read_all(const data::Dataset& dataset) {
  constexpr std::int64_t kMostAtOnce = 64;
  for (std::int64_t from = 0; from < dataset.size(); from += kMostAtOnce) {
    std::vector<std::int64_t> samples(static_cast<std::size_t>(std::min(kMostAtOnce, dataset.size() - from)));
    std::iota(samples.begin(), samples.end(), from);
    std::vector<std::vector<std::byte>> memory;
    std::vector<std::byte*> outputs;
    for (const auto& field : dataset.fields()) memory.emplace_back(field.bytes() * samples.size());
    for (auto& column : memory) outputs.push_back(column.data());
    dataset.read(samples, outputs);
  }
}

}  // namespace dtrain::fuzz
