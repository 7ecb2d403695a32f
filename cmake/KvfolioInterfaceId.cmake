# SPDX-License-Identifier: Apache-2.0
# cmake -DOUT=file "-DFILES=a;b" -P this: writes a header with KVFOLIO_INTERFACE_ID, a digest of what these headers
# say. Two extensions of Python that share C++ objects must have been compiled with the same.
cmake_minimum_required(VERSION 3.25)
set(digests)
foreach(file IN LISTS FILES)
  file(SHA256 ${file} digest)
  string(APPEND digests ${digest})
endforeach()
string(SHA256 digest "${digests}")
string(SUBSTRING ${digest} 0 16 digest)
file(WRITE ${OUT} "#define KVFOLIO_INTERFACE_ID \"${digest}\"\n")
