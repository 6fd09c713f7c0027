// The functions of a program by their places in it, from its symbol table, for calls of functions that it does not
// export.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace dtrain::launcher {

class ProgramSymbols {
 public:
  // No symbols if the file cannot be read, is no ELF file of this machine, or was stripped.
  explicit ProgramSymbols(const std::string& file);
  // Returns the name of the function that has this address of the file; empty: not known.
  std::string at(std::uint64_t address) const;

 private:
  struct Function {
    std::uint64_t begin, end;
    std::string name;
  };
  std::vector<Function> functions_;  // by `begin`
};

}  // namespace dtrain::launcher
