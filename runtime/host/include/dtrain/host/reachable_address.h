// Chooses the address of this machine that other hosts should use. Any thread may call.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "dtrain/host/interfaces.h"

namespace dtrain::host {

// `wanted`: an interface's name, or a network as in 10.1.0.0/16; empty or "auto": the interface of the default route,
// else the only one that is not loopback, else 127.0.0.1. ConfigError if the wanted interface is missing, or if several
// are possible; it begins with `where` and names the interfaces that exist.
std::string reachable_address(const std::string& wanted, const std::string& where);

// Chooses among the given interfaces; `default_interface` is empty if there is no default route.
std::string choose_address(const std::string& wanted, const std::vector<InterfaceAddress>& addresses,
                           const std::string& default_interface, const std::string& where);

// Returns the name of the interface that has that address, for NCCL. "lo" if there is none.
std::string interface_of(const std::string& wanted, const std::string& where);

// Returns the address of this host from which the kernel would send to `to`, by its routes. Sends nothing. Empty: there
// is no route.
std::string source_address(const std::string& to);

// ConfigError if this host cannot connect to its own address 127.0.0.1, by which the ranks of one host find each other:
// a network namespace begins with its interface lo down.
void check_loopback();

// Returns the interface of the default route (IPv4).
std::string default_interface(const std::filesystem::path& root = "/");

}  // namespace dtrain::host
