// What the tests of file formats share: a folder to write files in, what reading fails with, and what a sample holds.
#pragma once

#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "dtrain/base/error.h"
#include "dtrain/base/unix_socket.h"
#include "dtrain/data/dataset.h"

namespace dtrain::data {

class FileTest : public ::testing::Test {
 protected:
  FileTest() { std::filesystem::create_directory(folder_); }
  ~FileTest() override { std::filesystem::remove_all(folder_); }

  std::filesystem::path write(const std::string& name, const std::string& content) const {
    std::ofstream(folder_ / name, std::ios::binary) << content;
    return folder_ / name;
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

  const std::filesystem::path folder_ = std::filesystem::temp_directory_path() / ("dtrain-data-" + random_hex(8));
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
