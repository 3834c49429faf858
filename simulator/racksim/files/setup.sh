#!/bin/sh
# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
#
# Runs once in a container of the base image, without network, and makes it the node image (racksim/image.py).
set -eu
export PYTHONPATH=/opt/simhw
here=/usr/local/lib/simrack

# --- the hardware's own tools -----------------------------------------------------------------------------------
mkdir -p /opt/simhw/bin /opt/simhw/apt
ln -s /opt/simhw/engine/bin/vllm /opt/simhw/bin/vllm
cd /opt/simhw
python3 -m simhw install-links
python3 -m simhw.debs build /opt/simhw/apt
install -m 0644 simhw/*.service /etc/systemd/system/
systemctl enable --quiet simhw-boot.service
# The model every inference unit of the simulated rack serves, with its manifest.
python3 engine/make_model.py /srv/models/tiny-llama

# --- packages: only what is on the image itself -----------------------------------------------------------------
rm -f /etc/apt/sources.list /etc/apt/sources.list.d/* /etc/apt/apt.conf.d/99mmdebstrap
: > /etc/apt/sources.list
echo 'deb [trusted=yes] file:/opt/simhw/apt ./' > /etc/apt/sources.list.d/simhw.list
# As root: apt's unprivileged reader would only warn here, and nothing comes from a network.
apt-get -qq -o APT::Sandbox::User=root update

# --- InfiniBand: the real tools, each behind a wrapper that attaches it to ibsim --------------------------------
mkdir -p $here/real
for tool in ibstat ibstatus iblinkinfo ibnetdiscover ibqueryerrors perfquery sminfo saquery smpquery smpdump ibaddr \
            ibroute ibtracert ibportstate dump_fts ibccquery ibccconfig opensm osmtest; do
  if [ -e "/usr/sbin/$tool" ]; then
    dpkg-divert --quiet --local --rename --divert "$here/real/$tool" --add "/usr/sbin/$tool"
    ln -s $here/ibtool "/usr/sbin/$tool"
  fi
done
# The kernel of the machine has no umad device for systemd to see.
for unit in opensm.service opensm@.service; do
  mkdir -p "/etc/systemd/system/$unit.d"
  printf '[Unit]\nConditionPathExists=\n' > "/etc/systemd/system/$unit.d/simrack.conf"
done
systemctl disable --quiet opensm.service 2>/dev/null || true
echo 'd /run/simrack 0755 root root -' > /etc/tmpfiles.d/simrack.conf

# --- ssh: keys come with the container, logins are quick --------------------------------------------------------
rm -f /etc/ssh/ssh_host_*
cat > /etc/ssh/sshd_config.d/simrack.conf <<'END'
HostKey /etc/ssh/ssh_host_ed25519_key
PasswordAuthentication no
UseDNS no
MaxStartups 100:30:200
MaxSessions 100
END
install -d -m 0700 /root/.ssh
echo 'PATH="/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"' > /etc/environment

# --- clock: the container may not touch the machine's -----------------------------------------------------------
echo 'DAEMON_OPTS="-F 1 -x"' > /etc/default/chrony

# --- systemd: what a container has no use for -------------------------------------------------------------------
systemctl set-default --quiet multi-user.target
systemctl mask --quiet getty.target console-getty.service systemd-logind.service \
  apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer e2scrub_all.timer fstrim.timer systemd-sysctl.service systemd-update-utmp.service \
  systemd-udevd.service systemd-udev-trigger.service
mkdir -p /etc/systemd/journald.conf.d
printf '[Journal]\nStorage=volatile\nRuntimeMaxUse=32M\n' > /etc/systemd/journald.conf.d/simrack.conf
: > /etc/machine-id
rm -f /var/lib/dbus/machine-id

if [ -e simhw/image-setup.sh ]; then sh -eu simhw/image-setup.sh; fi
rm -f /opt/simhw/setup.sh
rm -rf /var/cache/apt/archives/*.deb /var/log/*.log /var/log/apt
