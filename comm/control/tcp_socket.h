// TCP sockets that are close-on-exec from their creation: programs that this process starts never inherit them. Any
// thread.
#pragma once

#include <asio/io_context.hpp>
#include <asio/ip/tcp.hpp>

namespace dtrain::comm {

// Returns an open socket that is not connected. std::system_error if the system refuses.
asio::ip::tcp::socket make_tcp_socket(asio::io_context& io, const asio::ip::tcp& protocol);
void open_acceptor(asio::ip::tcp::acceptor& acceptor, const asio::ip::tcp& protocol);

// Accepts a waiting connection, after the acceptor was found readable; sets `error` if there is none.
asio::ip::tcp::socket accept_waiting(asio::ip::tcp::acceptor& acceptor, asio::io_context& io, asio::error_code& error);

}  // namespace dtrain::comm
