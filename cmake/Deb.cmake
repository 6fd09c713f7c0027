# The Debian package; scripts/deb.sh makes it. It depends on Debian's libraries as dpkg-shlibdeps finds them; libtorch,
# which Debian does not have in this version, is got by dtrain-get-libtorch afterwards.
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME dtrain)
set(CPACK_PACKAGE_CONTACT "dtrain's developers <dtrain@localhost>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "distributed data-parallel training for libtorch, with profiling")
set(CPACK_DEBIAN_PACKAGE_DESCRIPTION
"dtrain trains a libtorch model (C++, or a TorchScript file) data-parallel on the
slots of a machine and says which rank, phase and resource the time went to.
.
Programs that train need libtorch ${DTRAIN_LIBTORCH_MINOR}: dtrain-get-libtorch downloads it, or
links that of an installed PyTorch.")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS ${CMAKE_BINARY_DIR}/lib ${DTRAIN_LIBTORCH_DIR}/lib)
set(CPACK_DEBIAN_PACKAGE_RECOMMENDS "python3-venv")  # dtrain-get-libtorch
# To build trials; for the mpi backend, which is opened where it is asked for.
set(CPACK_DEBIAN_PACKAGE_SUGGESTS "g++, cmake, nlohmann-json3-dev, bash-completion, openmpi-bin")
set(CPACK_DEBIAN_PACKAGE_CONTROL_EXTRA ${CMAKE_SOURCE_DIR}/packaging/postrm)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
include(CPack)
