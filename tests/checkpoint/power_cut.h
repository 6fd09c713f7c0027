// What a disk may hold after a power cut, from the lines of fault_layer.cpp. Certain is only what was synchronised: a
// file's bytes when fsync() returned, a folder's names when the folder's fsync() returned. Of all that came later, each
// single change is kept or lost by chance: a write may also be kept in part, a rename counts as one change.
#pragma once

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "faulty_saver.h"

namespace dtrain::checkpoints {

class SimulatedDisk {
 public:
  SimulatedDisk() : root_(std::make_shared<Node>(Node{.is_folder = true})) {}

  // One line of the log.
  void apply(const std::string& line) {
    std::istringstream words(line);
    std::string call, first, second;
    words >> call;
    if (call == "create" || call == "mkdir") {
      words >> first;
      Node node{.is_folder = call == "mkdir"};
      change(first, {Change::kLink, name_of(first), {}, std::make_shared<Node>(std::move(node))});
    } else if (call == "write") {
      std::string offset, data;
      words >> first >> offset >> data;
      find(first)->writes.push_back({std::stoull(offset), from_hex(data), false});
    } else if (call == "truncate" || call == "allocate") {
      words >> second >> first;
      find(first)->writes.push_back({std::stoull(second), {}, call == "truncate"});
    } else if (call == "fsync") {
      words >> first;
      Node& node = *find(first);
      for (const Write& write : std::exchange(node.writes, {})) put(node.certain, write);
    } else if (call == "syncdir") {
      words >> first;
      Node& node = *find(first);
      for (const Change& one : std::exchange(node.changes, {})) put(node.certain_names, one);
    } else if (call == "rename" || call == "exchange") {
      words >> first >> second;
      if (parent_of(first) != parent_of(second)) throw std::runtime_error("a rename between folders: " + line);
      change(first, {call == "rename" ? Change::kRename : Change::kExchange, name_of(first), name_of(second), nullptr});
    } else if (call == "remove") {
      words >> first;
      change(first, {Change::kUnlink, name_of(first), {}, nullptr});
    } else {
      throw std::runtime_error("unknown line: " + line);
    }
  }

  void write_to(const std::filesystem::path& folder, Draw& draw) const { write_folder(*root_, folder, draw); }

 private:
  struct Node;
  using Names = std::map<std::string, std::shared_ptr<Node>>;
  struct Write {
    std::size_t offset;
    std::string data;
    bool cuts;  // otherwise data, or space that is reserved up to the offset
  };
  struct Change {
    enum Kind { kLink, kUnlink, kRename, kExchange } kind;
    std::string name, other;
    std::shared_ptr<Node> node;
  };
  struct Node {
    bool is_folder = false;
    std::string certain;        // a file's bytes
    std::vector<Write> writes;  // since then
    Names certain_names;        // a folder's
    std::vector<Change> changes;
    Names names{};  // a folder's, as processes see it now
  };

  static std::string name_of(const std::string& path) { return std::filesystem::path(path).filename(); }
  static std::string parent_of(const std::string& path) { return std::filesystem::path(path).parent_path(); }
  static std::string from_hex(const std::string& text) {
    std::string bytes;
    for (std::size_t i = 0; i + 1 < text.size(); i += 2) {
      bytes += static_cast<char>(std::stoi(text.substr(i, 2), nullptr, 16));
    }
    return bytes;
  }

  std::shared_ptr<Node> find(const std::string& path) const {
    std::shared_ptr<Node> node = root_;
    for (const auto& part : std::filesystem::path(path)) {
      if (!part.empty()) node = node->names.at(part);
    }
    return node;
  }
  void change(const std::string& path, const Change& one) {
    Node& folder = *find(parent_of(path));
    put(folder.names, one);
    folder.changes.push_back(one);
  }

  static void put(std::string& bytes, const Write& write) {
    if (write.data.empty()) {
      if (write.cuts || write.offset > bytes.size()) bytes.resize(write.offset);
      return;
    }
    bytes.resize(std::max(bytes.size(), write.offset + write.data.size()));
    bytes.replace(write.offset, write.data.size(), write.data);
  }
  // A change whose names are not there any more, because others are lost, is lost too.
  static void put(Names& names, const Change& one) {
    const auto found = names.find(one.name);
    if (one.kind == Change::kLink) {
      names[one.name] = one.node;
    } else if (found == names.end()) {
      return;
    } else if (one.kind == Change::kUnlink) {
      names.erase(found);
    } else if (one.kind == Change::kRename) {
      auto node = found->second;
      names.erase(found);
      names[one.other] = node;
    } else if (const auto other = names.find(one.other); other != names.end()) {
      std::swap(found->second, other->second);
    }
  }

  static void write_folder(const Node& node, const std::filesystem::path& path, Draw& draw) {
    std::filesystem::create_directories(path);
    Names names = node.certain_names;
    for (const Change& one : node.changes) {
      if (draw.one_in(2)) put(names, one);
    }
    for (const auto& [name, child] : names) {
      child->is_folder ? write_folder(*child, path / name, draw) : write_file(*child, path / name, draw);
    }
  }
  static void write_file(const Node& node, const std::filesystem::path& path, Draw& draw) {
    std::string bytes = node.certain;
    for (Write write : node.writes) {
      if (draw.one_in(2)) continue;
      if (!write.data.empty() && draw.one_in(3)) {
        write.data.resize(static_cast<std::size_t>(draw.between(1, static_cast<std::int64_t>(write.data.size()))));
      }
      put(bytes, write);
    }
    std::ofstream(path, std::ios::binary) << bytes;
  }

  std::shared_ptr<Node> root_;
};

}  // namespace dtrain::checkpoints
