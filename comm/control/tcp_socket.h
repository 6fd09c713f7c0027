// TCP sockets that no program this process starts inherits, from the moment on in which they exist. Any thread.
#pragma once

#include <asio/io_context.hpp>
#include <asio/ip/tcp.hpp>

namespace dtrain::comm {

// Open, and not connected. std::system_error where the system refuses.
asio::ip::tcp::socket make_tcp_socket(asio::io_context& io, const asio::ip::tcp& protocol);
void open_acceptor(asio::ip::tcp::acceptor& acceptor, const asio::ip::tcp& protocol);

// A connection that waits there, after the acceptor was found readable; `error` says why there is none.
asio::ip::tcp::socket accept_waiting(asio::ip::tcp::acceptor& acceptor, asio::io_context& io, asio::error_code& error);

}  // namespace dtrain::comm
