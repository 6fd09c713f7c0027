// The page that sections write to: static HTML that reads and prints without a script, and for each chart the data that
// the script draws. One thread at a time.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "dtrain/base/json.h"
#include "report/html.h"

namespace dtrain::analysis::report {

// `spec` is what assets/charts.js draws: {"kind", "x", "y", "sets", ...}. The text describes the chart for
// readers who cannot see it.
struct Chart {
  std::string id, title, text;
  Json spec;
  int height = 260;  // pixels
};

class Page {
 public:
  // Everything up to the next call belongs to this section.
  void begin_section(const std::string& id, const std::string& title);
  void heading(const std::string& text);
  void paragraph(const std::string& text);
  void list(const std::vector<std::string>& items);
  // Pairs of a name and its value, side by side.
  void facts(const std::vector<std::pair<std::string, std::string>>& pairs);
  // What is not here, why, and how one would get it.
  void absent(const std::string& what, const std::string& why, const std::string& how);
  void table(const Table& table);  // nothing where it has no row
  void chart(Chart chart);
  // Charts and tables up to the end of it stand side by side where there is room.
  void begin_columns();
  void end_columns();
  // Markup of the caller's own, who has escaped what is in it.
  void raw(const std::string& html) { body_ += html; }

  // The whole file.
  std::string html(const std::string& title, const std::string& header, const Json& analysis);

 private:
  void end_section();

  struct Entry {
    std::string id, title;
  };
  std::vector<Entry> sections_;
  std::string body_;
  Json charts_ = Json::object();
};

}  // namespace dtrain::analysis::report
