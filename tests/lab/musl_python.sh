#!/bin/sh
# Builds CPython against musl from Debian's sources, in a Debian tree as root, where /alpine holds Alpine's libraries of
# OpenSSL and zlib: what it links to must be what it will meet. The result is below /out.
set -eu

libraries=/built/lib
headers=/built/include
mkdir -p /src $libraries $headers
cd /src
apt-get update -q > /dev/null
apt-get source -q --download-only python3.13 sqlite3 > /dev/null

# The headers are Debian's, of the same OpenSSL; Alpine's is built without compression of records.
cp -r /usr/include/openssl $headers/
cp /usr/include/"$(uname -m)"-linux-gnu/openssl/*.h $headers/openssl/
sed -i '1i #define OPENSSL_NO_COMP' $headers/openssl/configuration.h
cp /usr/include/zlib.h /usr/include/zconf.h $headers/
for kernel in linux asm-generic; do ln -s /usr/include/$kernel $headers/$kernel; done
ln -s /usr/include/"$(uname -m)"-linux-gnu/asm $headers/asm
cp /alpine/* $libraries/
for name in libssl.so.3 libcrypto.so.3 libz.so.1; do ln -s $name $libraries/"${name%.[0-9]*}"; done
echo "/lib:/usr/lib/$(uname -m)-linux-musl:/usr/lib/musl/lib:$libraries" > /etc/ld-musl-"$(uname -m)".path

# The compiler of the wrapper, which would say that it is Debian's own when Python asks.
cat > /usr/local/bin/musl-cc << 'WRAPPER'
#!/bin/sh
case "$*" in *--print-multiarch*) echo "$(uname -m)-linux-musl"; exit ;; esac
exec musl-gcc "$@"
WRAPPER
chmod +x /usr/local/bin/musl-cc
export CC=musl-cc
# Built quickly rather than to be quick. musl gives a thread 128 KiB of stack, which Python's recursion overruns.
export CFLAGS="-O1 -fPIC -DTHREAD_STACK_SIZE=0x100000 -I$headers"

for archive in sqlite3_*.orig.tar.xz python3.13_*.orig.tar.xz; do tar xf "$archive"; done
cd /src/sqlite*/
CFLAGS="$CFLAGS -DSQLITE_ENABLE_FTS5" ./configure --disable-shared --enable-static --disable-tcl --disable-readline > /dev/null
make -j2 libsqlite3.la sqlite3.h > /dev/null
cp sqlite3.h src/sqlite3ext.h $headers/
cp .libs/libsqlite3.a $libraries/

cd /src/Python-3.13*/
PKG_CONFIG_LIBDIR=/nonexistent ./configure --prefix=/usr --without-ensurepip --with-openssl=/built --disable-test-modules \
    CPPFLAGS="-I$headers" LDFLAGS="-L$libraries" \
    LIBSQLITE3_CFLAGS="-I$headers" LIBSQLITE3_LIBS="-L$libraries -lsqlite3 -lm" \
    ZLIB_CFLAGS="-I$headers" ZLIB_LIBS="-L$libraries -lz" > /dev/null
make -j2 OPT=-DNDEBUG > /src/make.log 2>&1 || { tail -40 /src/make.log; exit 1; }
make install DESTDIR=/out > /dev/null 2>&1

cd /out/usr
rm -rf share include lib/python3.13/test lib/python3.13/idlelib lib/python3.13/tkinter lib/python3.13/turtledemo
rm -rf lib/python3.13/ensurepip lib/python3.13/config-3.13*
find . \( -name '*.pyc' -o -name '*.a' \) -delete
find . -name '*.so' -exec strip --strip-unneeded {} +
strip bin/python3.13
