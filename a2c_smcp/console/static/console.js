// Opens a page, and keeps it current. A navigation brings a page that holds nothing: this script asks for the page with the
// secret of the session, which it keeps in the storage of this origin. Other ports of this machine are other origins; a
// cookie would be sent to them, too. The server then sends parts of the page as HTML, in which all text of others is escaped;
// they are merged into the document, so that focus, open details and what is being typed stay.

const { prefix } = document.body.dataset
const KEY = `a2c-session:${prefix}`
const ask = (address, options) =>
  fetch(address, { cache: 'no-store', ...options, headers: { 'X-A2C-Session': localStorage.getItem(KEY) || '' } })
const element = (id) => document.getElementById(id)

// Merging

const keyOf = (node) => (node.nodeType === Node.ELEMENT_NODE ? node.id || node.dataset.key || '' : '')
const isAlike = (a, b) => a.nodeType === b.nodeType && a.nodeName === b.nodeName && keyOf(a) === keyOf(b)
const KEPT = new Set(['open', 'data-filtered'])

function mergeAttributes(into, from) {
  for (const { name, value } of from.attributes) if (into.getAttribute(name) !== value) into.setAttribute(name, value)
  for (const { name } of [...into.attributes]) if (!from.hasAttribute(name) && !KEPT.has(name)) into.removeAttribute(name)
}

function merge(into, from) {
  if (into.nodeType !== Node.ELEMENT_NODE) {
    if (into.nodeValue !== from.nodeValue) into.nodeValue = from.nodeValue
    return
  }
  if (into.isEqualNode(from)) return
  mergeAttributes(into, from)
  mergeChildren(into, from)
}

function mergeChildren(into, from) {
  const keyed = new Map()
  for (const child of into.childNodes) if (keyOf(child)) keyed.set(keyOf(child), child)
  let place = into.firstChild
  for (const wanted of [...from.childNodes]) {
    const key = keyOf(wanted)
    const known = key ? keyed.get(key) : place
    if (known && isAlike(known, wanted)) {
      if (known !== place) into.insertBefore(known, place)
      place = known.nextSibling
      merge(known, wanted)
    } else {
      into.insertBefore(wanted, place)
    }
  }
  while (place) {
    const next = place.nextSibling
    place.remove()
    place = next
  }
}

function show(regions) {
  const focused = document.activeElement
  const region = focused && focused.closest('[data-region]')
  for (const [id, html] of Object.entries(regions)) {
    const into = element(id)
    if (!into) continue
    const before = new Set([...into.querySelectorAll('[data-announce]')].map((each) => each.dataset.key))
    const parsed = new DOMParser().parseFromString(html, 'text/html').body
    mergeChildren(into, parsed)
    const arrived = [...into.querySelectorAll('[data-announce]')].filter((each) => !before.has(each.dataset.key))
    if (arrived.length) announce(arrived.map((each) => each.dataset.announce).join(' '))
  }
  // What had the focus is gone, such as a request that was answered elsewhere: stay near, not at the top of the page.
  if (region && !document.contains(focused)) {
    const near = region.querySelector('h2, h3') || element('content')
    near.tabIndex = -1
    near.focus({ preventScroll: true })
  }
  filter()
  tick()
  countInTitle()
  tellOfRequests()
}

const announce = (text) => { element('announcements').textContent = text }

let title = document.title
function countInTitle() {
  const count = [...document.querySelectorAll('[data-count]')].reduce((sum, each) => sum + Number(each.dataset.count), 0)
  document.title = count ? `(${count}) ${title}` : title
}

// New requests: a notification of the browser, which says nothing of them, and a sound. Both are off until they are chosen in
// the settings of the page, and the browser is asked for permission by that click only.

const CHOICES = ['notify', 'sound']
const isChosen = (id) => localStorage.getItem(`a2c-${id}:${prefix}`) === 'yes'
let waiting = null
function tellOfRequests() {
  const badge = document.querySelector(`#menu a[href="${prefix}/"] [data-count]`)
  const before = waiting
  waiting = badge ? Number(badge.dataset.count) : 0
  if (before === null || waiting <= before || !element('notify')) return
  if (isChosen('notify') && !document.hasFocus()) notify(element('notify').dataset.notice)
  if (isChosen('sound')) beep()
}

function notify(text) {
  try {
    const shown = new Notification(text, { tag: `a2c${prefix}`, renotify: true })
    shown.onclick = () => { window.focus(); shown.close() }
  } catch { /* not here, or not any longer */ }
}

function beep() {
  const audio = new AudioContext()
  if (audio.state === 'suspended') return void audio.close() // the page was not touched yet
  const tone = audio.createOscillator()
  const volume = audio.createGain()
  volume.gain.value = 0.1
  tone.connect(volume).connect(audio.destination)
  tone.onended = () => audio.close()
  tone.start()
  tone.stop(audio.currentTime + 0.2)
}

document.addEventListener('change', async ({ target }) => {
  if (!CHOICES.includes(target.id)) return
  if (target.id === 'notify' && target.checked) {
    target.checked = window.Notification !== undefined && (await Notification.requestPermission()) === 'granted'
    fail(target.checked ? '' : target.dataset.refused)
  }
  localStorage.setItem(`a2c-${target.id}:${prefix}`, target.checked ? 'yes' : 'no')
  if (target.id === 'sound' && target.checked) beep()
})

// Times: `data-until` counts down to a moment, `data-since` counts up from one; both in milliseconds since the epoch

const two = (number) => String(number).padStart(2, '0')
function clock(seconds) {
  const whole = Math.max(0, Math.floor(seconds))
  const hours = Math.floor(whole / 3600)
  const rest = `${two(Math.floor(whole / 60) % 60)}:${two(whole % 60)}`
  return hours ? `${hours}:${rest}` : rest
}

function tick() {
  const now = Date.now()
  for (const each of document.querySelectorAll('[data-until]')) {
    const left = (Number(each.dataset.until) - now) / 1000
    each.textContent = clock(left)
    each.classList.toggle('urgent', left < 15)
  }
  for (const each of document.querySelectorAll('[data-since]')) each.textContent = clock((now - Number(each.dataset.since)) / 1000)
}
setInterval(tick, 1000)

// A list that is filtered while typing: `data-filter` is the id of the list, whose items have `data-text`

function filter() {
  for (const input of document.querySelectorAll('input[data-filter]')) {
    const words = input.value.toLowerCase().split(/\s+/).filter(Boolean)
    const list = element(input.dataset.filter)
    if (!list) continue
    let shown = 0
    for (const item of list.querySelectorAll('[data-text]')) {
      const isFound = words.every((word) => item.dataset.text.toLowerCase().includes(word))
      item.toggleAttribute('data-filtered', !isFound)
      shown += isFound ? 1 : 0
    }
    const count = element(`${input.dataset.filter}-count`)
    if (count) count.textContent = String(shown)
  }
}
document.addEventListener('input', (event) => event.target.matches('input[data-filter]') && filter())

// The stream. Browsers open few connections to one address, so of all hidden pages only one keeps its stream.

let stream = null
let release = null
let retry = 0
let pause = 300

function setState(state) {
  const shown = element('connection')
  if (!shown) return
  shown.dataset.state = state
  element('connection-text').textContent = shown.dataset[state] || state
}

async function connect() {
  clearTimeout(retry)
  if (stream || isOver) return
  const own = (stream = new AbortController())
  try {
    const answer = await ask(document.body.dataset.liveUrl, { signal: own.signal })
    if (answer.status === 401) return over()
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader()
    let rest = ''
    for (let part = await reader.read(); !part.done; part = await reader.read()) {
      const events = (rest + part.value).split('\n\n')
      rest = events.pop()
      events.forEach(receive)
    }
  } catch { /* it is lost */ }
  if (stream !== own || isOver) return
  stream = null
  setState('lost')
  retry = setTimeout(connect, pause)
  pause = 1500
}

function receive(event) {
  if (event.startsWith('event: ended')) return over()
  setState('live')
  pause = 300
  if (event.startsWith('event: regions')) show(JSON.parse(event.slice(event.indexOf('data: ') + 6)))
}

function close() {
  if (stream) stream.abort()
  stream = null
}

let isOver = false
function over() {
  isOver = true
  close()
  fail('')
  setState('over')
  const box = element('session-over')
  box.hidden = false
  for (const each of document.querySelectorAll('main button, main input, main select, main textarea')) each.disabled = true
  box.querySelector('h2').focus()
}

async function hide() {
  if (!navigator.locks) return close()
  await navigator.locks.request(`a2c-hidden:${location.host}`, { ifAvailable: true }, (lock) => {
    if (!lock) return close()
    return new Promise((resolve) => { release = resolve })
  })
}

document.addEventListener('visibilitychange', () => {
  if (!document.body.dataset.liveUrl) return
  if (document.visibilityState === 'hidden') return void hide()
  if (release) release()
  release = null
  connect()
})

// Forms

function fail(text) {
  element('failure-text').textContent = text
  element('failure').hidden = !text
}

document.addEventListener('click', (event) => event.target.id === 'failure-close' && fail(''))

// A button with `data-copy` copies the text of an element. Where a browser permits that to no page, it selects the text.
document.addEventListener('click', async ({ target: button }) => {
  if (!button.dataset.copy) return
  const source = element(button.dataset.copy)
  try {
    await navigator.clipboard.writeText(source.textContent)
    button.textContent = button.dataset.copied
  } catch {
    getSelection().selectAllChildren(source)
  }
})

function goOn({ goes_to, secret }, tab) {
  if (secret !== undefined) localStorage.setItem(KEY, secret)
  if (!tab) return location.assign(goes_to)
  tab.opener = null
  tab.location.replace(goes_to)
}

document.addEventListener('submit', async (event) => {
  const form = event.target
  // By attributes: a field named "action" would be `form.action`.
  if (form.getAttribute('method') !== 'post') return
  event.preventDefault()
  if (form.dataset.busy) return
  form.dataset.busy = 'yes'
  const data = new URLSearchParams(new FormData(form, event.submitter))
  const buttons = [...form.querySelectorAll('button')]
  for (const each of buttons) each.setAttribute('aria-disabled', 'true')
  let tab = form.getAttribute('target') === '_blank' ? open('', '_blank') : null // now: later it would be a popup
  try {
    const answer = await ask(form.getAttribute('action'), { method: 'POST', body: data })
    if (answer.status === 401) return over()
    fail(answer.ok ? '' : await answer.text())
    if (answer.status === 200) {
      goOn(await answer.json(), tab)
      tab = null
    } else if (answer.ok && !form.hasAttribute('data-live')) location.reload()
  } catch {
    fail(document.body.dataset.unreachable)
  } finally {
    if (tab) tab.close()
    delete form.dataset.busy
    for (const each of buttons) each.removeAttribute('aria-disabled')
  }
})

// The page

async function enter() {
  const link = location.pathname === `${prefix}/open` && new URLSearchParams(location.search).get('link')
  if (link) {
    const answer = await ask(`${prefix}/open`, { method: 'POST', body: new URLSearchParams({ link }) })
    const { goes_to, secret } = answer.ok ? await answer.json() : { goes_to: `${prefix}/` }
    if (secret) localStorage.setItem(KEY, secret)
    return location.replace(goes_to)
  }
  if (localStorage.getItem(KEY)) {
    const answer = await ask(location.href)
    if (answer.status !== 401) return showPage(new DOMParser().parseFromString(await answer.text(), 'text/html'))
  }
  const main = element('content')
  main.hidden = false
  const first = main.querySelector('[autofocus]')
  if (first) first.focus()
}

function showPage(page) {
  document.body.replaceWith(document.adoptNode(page.body))
  document.title = title = page.title
  if (document.body.dataset.liveUrl) connect()
  for (const id of CHOICES) if (element(id)) element(id).checked = isChosen(id)
  tick()
  countInTitle()
  tellOfRequests()
  if (location.hash) location.replace(location.hash)
}

enter().catch(() => fail(document.body.dataset.unreachable))
