// The places of the samples of a `model:` experiment. Private to config.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "document/section.h"
#include "dtrain/config/model_data.h"

namespace dtrain::config {

// Reads the keys that `declare` declares, where `format` is one of the words; without a good format, that one alone.
void read_data_keys(Section& section, const std::vector<std::string>& words, const Keys::Declare& declare);

template <class List = data::Format>
DataOf<List> read_model_data(Section section) {
  DataOf<List> data;
  read_data_keys(section, dtrain::words_of<List>(), [&](Keys& keys) { declare_keys(keys, data); });
  return data;
}

// Returns a path relative to the file's folder; empty, and reported, if it is missing or no path.
std::filesystem::path required_path(Section& section, const std::string& key, const std::string& what_it_is);

}  // namespace dtrain::config
