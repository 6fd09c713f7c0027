// What the tests of file formats share: a folder to write files in, what reading fails with, and what a sample holds.
#pragma once

#include <cstring>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "../harness/temporary_folder.h"
#include "dtrain/base/error.h"
#include "dtrain/data/dataset.h"

namespace dtrain::data {

class FileTest : public ::testing::Test {
 protected:
  std::filesystem::path write(const std::string& name, const std::string& content) const {
    return temporary_.write(name, content);
  }
  // "message; remedy" of the DataError that `read` ends with; empty when it succeeds.
  static std::string failure(const std::function<void()>& read) {
    try {
      read();
    } catch (const DataError& error) {
      return std::string(error.what()) + "; " + error.remedy();
    }
    return {};
  }

  const TemporaryFolder temporary_;
  const std::filesystem::path& folder_ = temporary_.path();
};

// Field `field` of the samples, one after the other.
template <typename Element>
std::vector<Element> read_field(const Dataset& dataset, std::size_t field, const std::vector<std::int64_t>& samples) {
  std::vector<std::vector<std::byte>> memory;
  std::vector<std::byte*> outputs;
  for (const auto& one : dataset.fields()) memory.emplace_back(one.bytes() * samples.size());
  for (auto& one : memory) outputs.push_back(one.data());
  dataset.read(samples, outputs);
  std::vector<Element> elements(memory.at(field).size() / sizeof(Element));
  std::memcpy(elements.data(), memory[field].data(), memory[field].size());
  return elements;
}

template <typename Element>
std::string bytes_of(const std::vector<Element>& elements) {
  return {reinterpret_cast<const char*>(elements.data()), elements.size() * sizeof(Element)};
}

}  // namespace dtrain::data
